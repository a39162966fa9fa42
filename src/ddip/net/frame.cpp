#include "ddip/net/frame.h"

#include <fmt/format.h>

#include <cstring>

#include "ddip/base/crc32c.h"
#include "ddip/base/error.h"

namespace ddip::net {
namespace {

constexpr uint32_t kMagic = 0x50494444;  // "DDIP" read as a little-endian word
constexpr uint8_t kVersion = 1;
constexpr size_t kChecksumAt = 12;

uint32_t read_u32(const char* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void write_u32(char* at, uint32_t value) { std::memcpy(at, &value, sizeof value); }

}  // namespace

std::string encode_frame(std::string_view body, size_t descriptors) {
  if (body.size() > kBodyCap)
    throw ProtocolError(fmt::format("frame body of {} bytes is over the cap of {}", body.size(), kBodyCap));
  if (body.empty()) throw ProtocolError("frame without a body");
  if (descriptors > kMaxDescriptors)
    throw ProtocolError(fmt::format("{} descriptors in one frame, at most {}", descriptors, kMaxDescriptors));
  std::string bytes(kHeaderBytes + body.size(), '\0');
  write_u32(&bytes[0], kMagic);
  bytes[4] = static_cast<char>(kVersion);
  bytes[5] = static_cast<char>(descriptors);
  write_u32(&bytes[8], static_cast<uint32_t>(body.size()));
  std::memcpy(&bytes[kHeaderBytes], body.data(), body.size());
  write_u32(&bytes[kChecksumAt], crc32c(body, crc32c({bytes.data(), kChecksumAt})));
  return bytes;
}

void FrameReader::feed(std::string_view bytes) {
  if (consumed_ > 0) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  buffer_.append(bytes);
}

std::optional<Frame> FrameReader::next() {
  const char* at = buffer_.data() + consumed_;
  size_t left = buffer_.size() - consumed_;
  if (left < kHeaderBytes) return std::nullopt;
  if (read_u32(at) != kMagic) throw ProtocolError("bad magic: this is not a ddip stream");
  if (static_cast<uint8_t>(at[4]) != kVersion) {
    throw ProtocolError(fmt::format("frame version {}, expected {}", static_cast<uint8_t>(at[4]), kVersion));
  }
  uint8_t descriptors = static_cast<uint8_t>(at[5]);
  if (descriptors > kMaxDescriptors) throw ProtocolError(fmt::format("{} descriptors in one frame", descriptors));
  if (at[6] != 0 || at[7] != 0) throw ProtocolError("reserved header bytes are not zero");
  uint32_t length = read_u32(at + 8);
  if (length == 0) throw ProtocolError("frame without a body");
  if (length > body_cap_)
    throw ProtocolError(fmt::format("frame body of {} bytes is over the cap of {}", length, body_cap_));
  if (left < kHeaderBytes + length) return std::nullopt;
  std::string_view body(at + kHeaderBytes, length);
  if (crc32c(body, crc32c({at, kChecksumAt})) != read_u32(at + kChecksumAt)) throw ProtocolError("checksum mismatch");
  consumed_ += kHeaderBytes + length;
  return Frame{std::string(body), descriptors};
}

}  // namespace ddip::net
