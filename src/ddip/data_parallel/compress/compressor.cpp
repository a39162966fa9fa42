#include "ddip/data_parallel/compress/compressor.h"

#include <fmt/format.h>

#include "ddip/base/error.h"

namespace ddip::data_parallel {

std::unique_ptr<Compressor> make_compressor(const std::string& name) {
  if (name == "none") return nullptr;
  throw ConfigError(fmt::format("compress='{}' is unknown; there is none", name));
}

}  // namespace ddip::data_parallel
