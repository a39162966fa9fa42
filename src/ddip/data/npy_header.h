// The first bytes of a .npy file: what the rest is. Pure, and strict: anything that NumPy would not write is refused,
// with one line, before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddip::data {

// Little-endian numbers: 'f' floating, 'i' signed, 'u' unsigned, 'b' boolean.
struct NpyType {
  char kind = 'f';
  size_t bytes = 4;

  bool operator==(const NpyType&) const = default;
  std::string text() const;  // "<f4", as NumPy writes it
};

struct NpyHeader {
  NpyType type;
  std::vector<uint64_t> shape;
  size_t header_bytes = 0;  // where the data begins

  uint64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  uint64_t row_bytes() const;   // of one element of the first dimension
  uint64_t data_bytes() const;  // cannot overflow: parsing saw to it
};

// How many bytes of the file must be there before parse_npy_header can be called: 0 if `start` is too short to say.
size_t npy_header_size(std::string_view start);

// `start`: at least npy_header_size bytes of the file. Throws ConfigError, without a file name.
NpyHeader parse_npy_header(std::string_view start);

std::string format_npy_header(const NpyType& type, const std::vector<uint64_t>& shape);

}  // namespace ddip::data
