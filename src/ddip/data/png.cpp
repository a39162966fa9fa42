#include "ddip/data/png.h"

#include <array>

#include "ddip/base/file.h"

namespace ddip::data {
namespace {

// CRC-32 as PNG has it (not the one of base/, which is Castagnoli's).
uint32_t crc_of(const std::string& bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t index = 0; index < 256; ++index) {
      uint32_t value = index;
      for (int bit = 0; bit < 8; ++bit) value = value & 1 ? 0xedb88320u ^ (value >> 1) : value >> 1;
      made[index] = value;
    }
    return made;
  }();
  uint32_t crc = 0xffffffffu;
  for (unsigned char byte : bytes) crc = table[(crc ^ byte) & 0xff] ^ (crc >> 8);
  return ~crc;
}

uint32_t adler_of(const std::string& bytes) {
  uint32_t low = 1, high = 0;
  for (unsigned char byte : bytes) {
    low = (low + byte) % 65521;
    high = (high + low) % 65521;
  }
  return high << 16 | low;
}

std::string big_endian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

std::string chunk(const std::string& kind, const std::string& body) {
  return big_endian(static_cast<uint32_t>(body.size())) + kind + body + big_endian(crc_of(kind + body));
}

// zlib's format, with blocks that are stored as they are.
std::string stored(const std::string& bytes) {
  std::string out = "\x78\x01";
  for (size_t begin = 0; begin == 0 || begin < bytes.size(); begin += 65535) {
    size_t length = std::min<size_t>(65535, bytes.size() - begin);
    out += begin + length == bytes.size() ? '\x01' : '\x00';
    for (size_t value : {length, ~length}) {
      out += static_cast<char>(value & 0xff);
      out += static_cast<char>(value >> 8 & 0xff);
    }
    out.append(bytes, begin, length);
  }
  return out + big_endian(adler_of(bytes));
}

}  // namespace

void Picture::set(int x, int y, uint8_t red, uint8_t green, uint8_t blue) {
  size_t place = (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)) * 3;
  rgb[place] = red;
  rgb[place + 1] = green;
  rgb[place + 2] = blue;
}

std::string encode_png(const Picture& picture) {
  std::string lines;
  size_t row = static_cast<size_t>(picture.width) * 3;
  for (size_t y = 0; y < static_cast<size_t>(picture.height); ++y) {
    lines += '\0';  // no filter
    lines.append(reinterpret_cast<const char*>(picture.rgb.data()) + y * row, row);
  }
  std::string header =
      big_endian(static_cast<uint32_t>(picture.width)) + big_endian(static_cast<uint32_t>(picture.height));
  header += std::string("\x08\x02\x00\x00\x00", 5);  // 8 bits, RGB
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", stored(lines)) + chunk("IEND", "");
}

void write_png(const std::filesystem::path& path, const Picture& picture) {
  const std::string bytes = encode_png(picture);
  NewFile file(path);
  file.write(std::as_bytes(std::span(bytes)), 0);
  file.publish();
}

}  // namespace ddip::data
