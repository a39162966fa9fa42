// A frame: sixteen bytes of header, then a body. Bytes only; what a body means is wire/'s business.
//
//   0  u32  magic "DDIP"
//   4  u8   version (1)
//   5  u8   number of descriptors that travel with this frame (SCM_RIGHTS)
//   6  u16  zero
//   8  u32  body length
//  12  u32  CRC-32C over the twelve bytes above and the body
//
// All numbers little-endian. A stream with a bad frame is closed: there is no way back into step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddip::net {

constexpr size_t kHeaderBytes = 16;
constexpr size_t kMaxDescriptors = 8;
constexpr uint32_t kBodyCapBeforeHello = 64u << 10;
constexpr uint32_t kBodyCap = 16u << 20;

struct Frame {
  std::string body;
  uint8_t descriptors = 0;
};

// Throws ProtocolError if the body is over kBodyCap or there are too many descriptors.
std::string encode_frame(std::string_view body, size_t descriptors);

// Takes bytes as they come, gives back whole frames. Throws ProtocolError at the first bad header, over-long body or
// wrong checksum; a reader that has thrown is dead.
class FrameReader {
 public:
  explicit FrameReader(uint32_t body_cap) : body_cap_(body_cap) {}

  void raise_cap(uint32_t body_cap) { body_cap_ = body_cap; }
  void feed(std::string_view bytes);
  std::optional<Frame> next();

 private:
  uint32_t body_cap_;
  std::string buffer_;
  size_t consumed_ = 0;
};

}  // namespace ddip::net
