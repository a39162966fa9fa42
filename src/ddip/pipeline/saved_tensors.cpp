#include "ddip/pipeline/saved_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

std::string described(at::ScalarType type, at::IntArrayRef sizes) {
  return fmt::format("{} ({})", c10::toString(type), fmt::join(sizes, ", "));
}

}  // namespace

bool SavedTensors::has_under(const std::string& prefix) const {
  const auto found = left_.lower_bound(prefix);
  return found != left_.end() && found->first.starts_with(prefix);
}

at::Tensor SavedTensors::take(const std::string& name, at::ScalarType type, at::IntArrayRef sizes) {
  auto found = left_.extract(name);
  if (found.empty()) throw ConfigError(fmt::format("{} is missing", name));
  const at::Tensor& tensor = found.mapped();
  if (tensor.scalar_type() != type || tensor.sizes() != sizes)
    throw ConfigError(fmt::format("{} is {}, expected {}", name, described(tensor.scalar_type(), tensor.sizes()),
                                  described(type, sizes)));
  return tensor;
}

int64_t SavedTensors::take_count(const std::string& name) {
  const auto count = take(name, at::kLong, {}).item<int64_t>();
  if (count < 0 || count >= kMostSaved) throw ConfigError(fmt::format("{} is {}, expected a count", name, count));
  return count;
}

NamedTensors SavedTensors::take_under(const std::string& prefix) {
  NamedTensors found;
  while (has_under(prefix)) {
    auto one = left_.extract(left_.lower_bound(prefix));
    found[one.key().substr(prefix.size())] = one.mapped();
  }
  return found;
}

void SavedTensors::require_none_under(const std::string& prefix) const {
  if (has_under(prefix)) throw ConfigError(fmt::format("{} is not expected", left_.lower_bound(prefix)->first));
}

}  // namespace ddip::pipeline
