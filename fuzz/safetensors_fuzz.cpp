// Any bytes as the header of a .safetensors file: entries that cover the data exactly, or a ConfigError, nothing else.
// What is accepted is written and read as itself.
#include <cstdint>
#include <cstring>
#include <string_view>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/checkpoint/safetensors_header.h"

using namespace ddip::checkpoint;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view json(reinterpret_cast<const char*>(data) + 2, size - 2);
  uint16_t data_bytes = 0;
  std::memcpy(&data_bytes, data, 2);
  try {
    const SafetensorsHeader header = parse_safetensors_header(json, data_bytes);
    uint64_t at = 0;
    for (const TensorEntry& entry : header.tensors) {
      DDIP_CHECK(entry.begin == at && entry.end >= at, "tensors touch");
      at = entry.end;
    }
    DDIP_CHECK(at == data_bytes, "nothing is left over");
    const std::string text = format_safetensors_header(header);
    const SafetensorsHeader again = parse_safetensors_header(std::string_view(text).substr(kLengthBytes), data_bytes);
    DDIP_CHECK(again.metadata == header.metadata && again.tensors.size() == header.tensors.size(),
               "what is written is read");
  } catch (const ddip::ConfigError&) {
  }
  return 0;
}
