#include "ddip/tensors/tensor_bytes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "ddip/base/error.h"

namespace ddip::tensors {
namespace {

using checkpoint::TensorEntry;

constexpr size_t kListed = 4;
constexpr uint64_t kMostElements = uint64_t{1} << 48;  // in one dimension: an empty tensor may have any

const std::map<at::ScalarType, std::string>& dtype_names() {
  static const std::map<at::ScalarType, std::string> names = {
      {at::kDouble, "F64"}, {at::kFloat, "F32"}, {at::kHalf, "F16"}, {at::kBFloat16, "BF16"}, {at::kLong, "I64"},
      {at::kInt, "I32"},    {at::kShort, "I16"}, {at::kChar, "I8"},  {at::kByte, "U8"},       {at::kBool, "BOOL"}};
  return names;
}

std::string dtype_name(const at::Tensor& tensor) {
  const auto found = dtype_names().find(tensor.scalar_type());
  if (found == dtype_names().end())
    throw ConfigError(
        fmt::format("a tensor of type {} has no place in a checkpoint", c10::toString(tensor.scalar_type())));
  return found->second;
}

std::vector<uint64_t> shape_of(const at::Tensor& tensor) { return {tensor.sizes().begin(), tensor.sizes().end()}; }

std::string listed(const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const size_t shown = std::min(names.size(), kListed);
  return fmt::format("; {}: {}{}", what, fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", "),
                     names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

}  // namespace

TensorBytes::TensorBytes(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    kept_.push_back(tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true).contiguous());
    const at::Tensor& copy = kept_.back();
    named_.push_back({name,
                      dtype_name(copy),
                      shape_of(copy),
                      {static_cast<const std::byte*>(copy.const_data_ptr()), static_cast<size_t>(copy.nbytes())}});
  }
}

std::map<std::string, at::Tensor> read_tensors(const checkpoint::SafetensorsFile& file) {
  std::map<std::string, at::Tensor> found;
  for (const TensorEntry& entry : file.header().tensors) {
    const auto known = std::ranges::find(dtype_names(), entry.dtype, [](const auto& name) { return name.second; });
    if (known == dtype_names().end())
      throw ConfigError(
          fmt::format("{}: {} has the type {}, which torch has not", file.path().string(), entry.name, entry.dtype));
    if (std::ranges::any_of(entry.shape, [](uint64_t size) { return size > kMostElements; }))
      throw ConfigError(fmt::format("{}: {} has a shape that no tensor can have", file.path().string(), entry.name));
    const at::Tensor read = at::empty(std::vector<int64_t>(entry.shape.begin(), entry.shape.end()), known->first);
    file.read(entry, read.mutable_data_ptr());
    found[entry.name] = read;
  }
  return found;
}

void require_fit(const checkpoint::SafetensorsFile& file, const NamedTensors& tensors) {
  std::map<std::string, const TensorEntry*> entries;
  for (const TensorEntry& entry : file.header().tensors) entries[entry.name] = &entry;
  std::vector<std::string> missing, unexpected, different;
  std::map<std::string, at::Tensor> wanted(tensors.begin(), tensors.end());
  for (const auto& [name, tensor] : tensors) {
    const auto found = entries.find(name);
    if (found == entries.end())
      missing.push_back(name);
    else if (found->second->dtype != dtype_name(tensor) || found->second->shape != shape_of(tensor))
      different.push_back(fmt::format("{} is {} ({}), expected {} ({})", name, found->second->dtype,
                                      fmt::join(found->second->shape, ", "), dtype_name(tensor),
                                      fmt::join(shape_of(tensor), ", ")));
  }
  for (const auto& [name, entry] : entries) {
    if (!wanted.contains(name)) unexpected.push_back(name);
  }
  const std::string complaints =
      listed("missing", missing) + listed("unexpected", unexpected) + listed("different", different);
  if (!complaints.empty())
    throw ConfigError(fmt::format("{}: it does not fit this model{}", file.path().string(), complaints));
}

void load_tensors(const checkpoint::SafetensorsFile& file, const NamedTensors& tensors) {
  require_fit(file, tensors);
  std::map<std::string, const TensorEntry*> entries;
  for (const TensorEntry& entry : file.header().tensors) entries[entry.name] = &entry;
  const at::NoGradGuard no_gradients;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor read = at::empty(tensor.sizes(), tensor.scalar_type());
    file.read(*entries.at(name), read.mutable_data_ptr());
    at::Tensor(tensor).copy_(read);
  }
}

}  // namespace ddip::tensors
