// Any bytes as the beginning of a .npy file: a header or a ConfigError, nothing else. What is accepted is written and
// read as itself. Odd inputs get a sound beginning first, so that the dictionary is reached.
#include <cstdint>
#include <string>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/data/npy_header.h"

using namespace ddip::data;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) {
    size_t length = bytes.size() & 0xffff;
    std::string start("\x93NUMPY\x01\x00", 8);
    start += static_cast<char>(length & 0xff);
    start += static_cast<char>(length >> 8);
    bytes = start + bytes;
  }
  try {
    NpyHeader header = parse_npy_header(bytes);
    DDIP_CHECK(header.header_bytes <= bytes.size(), "a header lies inside the file");
    DDIP_CHECK(header.data_bytes() <= uint64_t{1} << 60, "a size that is no overflow");
    NpyHeader again = parse_npy_header(format_npy_header(header.type, header.shape));
    DDIP_CHECK(again.type == header.type && again.shape == header.shape, "what is written is what was read");
  } catch (const ddip::ConfigError&) {
  }
  return 0;
}
