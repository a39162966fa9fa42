// Pictures as PNG files, without a library: stored, not compressed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace ddip::data {

struct Picture {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> rgb;  // width × height × 3

  Picture(int wide, int high)
      : width(wide), height(high), rgb(static_cast<size_t>(wide) * static_cast<size_t>(high) * 3) {}
  void set(int x, int y, uint8_t red, uint8_t green, uint8_t blue);
};

std::string encode_png(const Picture& picture);
void write_png(const std::filesystem::path& path, const Picture& picture);

}  // namespace ddip::data
