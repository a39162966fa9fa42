#include "ddip/data_parallel/compress/compressor.h"

#include <fmt/format.h>

#include <charconv>

#include "ddip/base/error.h"

namespace ddip::data_parallel {
namespace {

double number_after(const std::string& text, size_t colon, double otherwise) {
  if (colon == std::string::npos) return otherwise;
  double value = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data() + colon + 1, end, value);
  if (error != std::errc() || stop != end) throw ConfigError(fmt::format("compress='{}': no number after ':'", text));
  return value;
}

}  // namespace

std::shared_ptr<Compressor> make_compressor(const std::string& text) {
  size_t colon = text.find(':');
  std::string name = text.substr(0, colon);
  if (name == "topk") {
    double share = number_after(text, colon, 0.01);
    if (!(share > 0 && share <= 1))
      throw ConfigError(fmt::format("compress='{}': a share between 0 and 1 was expected", text));
    return make_topk(share);
  }
  if (name == "powersgd") {
    double rank = number_after(text, colon, 4);
    if (!(rank >= 1 && rank <= 64 && rank == static_cast<double>(static_cast<int>(rank))))
      throw ConfigError(fmt::format("compress='{}': a rank between 1 and 64 was expected", text));
    return make_power_sgd(static_cast<int64_t>(rank));
  }
  if (colon == std::string::npos) {
    if (name == "none") return nullptr;
    if (name == "fp16") return make_half(at::kHalf);
    if (name == "bf16") return make_half(at::kBFloat16);
    if (name == "int8") return make_int8();
  }
  throw ConfigError(fmt::format(
      "compress='{}' is unknown, one of none, fp16, bf16, int8, topk[:SHARE], powersgd[:RANK] was expected", text));
}

}  // namespace ddip::data_parallel
