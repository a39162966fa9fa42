// Any bytes as a stream of frames: never a crash, the same frames and the same end however they were cut, and what is
// given back encodes to the very bytes it came from. Odd inputs get correct headers first, or the fuzzer would never
// come past the checksum.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ddip/base/check.h"
#include "ddip/base/crc32c.h"
#include "ddip/base/error.h"
#include "ddip/net/frame.h"

using namespace ddip::net;

namespace {

constexpr uint32_t kCap = 1000;

struct Outcome {
  std::vector<Frame> frames;
  std::string error;
};

void repair(std::string& bytes) {
  for (size_t at = 0; bytes.size() - at >= kHeaderBytes;) {
    char* header = bytes.data() + at;
    const size_t left = bytes.size() - at - kHeaderBytes;
    uint32_t length;
    std::memcpy(&length, header + 8, 4);
    // Half the lengths are left as they are, most of them too long; the others are brought inside.
    if (length % 2 == 0) {
      length %= static_cast<uint32_t>(left % 300 + 1);
      std::memcpy(header + 8, &length, 4);
    }
    std::memcpy(header, "DDIP\1", 5);
    header[5] = static_cast<char>(static_cast<uint8_t>(header[5]) % (kMaxDescriptors + 2));  // 9 is one too many
    header[6] = header[7] = 0;
    const size_t body = length < left ? length : left;
    const uint32_t sum = ddip::crc32c({header + kHeaderBytes, body}, ddip::crc32c({header, 12}));
    std::memcpy(header + 12, &sum, 4);
    if (length > left) return;
    at += kHeaderBytes + length;
  }
}

Outcome read(const std::string& bytes, size_t piece) {
  Outcome outcome;
  FrameReader reader(kCap);
  try {
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const std::string part = bytes.substr(at, piece);  // a copy, so that reading over its end is caught
      reader.feed(part);
      while (auto frame = reader.next()) outcome.frames.push_back(std::move(*frame));
    }
  } catch (const ddip::ProtocolError& error) {
    outcome.error = error.what();
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (data[0] % 2 == 1) repair(bytes);
  const Outcome whole = read(bytes, bytes.size() + 1);
  const Outcome pieces = read(bytes, data[1] % 64 + 1);
  DDIP_CHECK(whole.error == pieces.error, "a cut changes nothing");
  DDIP_CHECK(whole.frames.size() == pieces.frames.size(), "a cut changes nothing");
  std::string again;
  for (size_t index = 0; index < whole.frames.size(); ++index) {
    const Frame& frame = whole.frames[index];
    DDIP_CHECK(frame.body == pieces.frames[index].body, "a cut changes nothing");
    DDIP_CHECK(!frame.body.empty() && frame.body.size() <= kCap && frame.descriptors <= kMaxDescriptors,
               "within the limits");
    again += encode_frame(frame.body, frame.descriptors);
  }
  DDIP_CHECK(bytes.compare(0, again.size(), again) == 0, "nothing but what was there");
  return 0;
}
