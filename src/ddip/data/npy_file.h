// Rows of a .npy file, read when they are asked for and written as they come. Reading is by pread: a file that shrinks
// meanwhile is an error, where a mapping of it would end the process.
#pragma once

#include <filesystem>
#include <span>

#include "ddip/base/file.h"
#include "ddip/data/npy_header.h"

namespace ddip::data {

class NpyFile {
 public:
  // Throws ConfigError: one line with the file's name and what is wrong with it.
  explicit NpyFile(std::filesystem::path path);

  const NpyHeader& header() const { return header_; }
  uint64_t rows() const { return header_.rows(); }
  size_t row_bytes() const { return header_.row_bytes(); }

  // From any thread. `out` must have room for `count` rows; REQUIRES: begin + count <= rows().
  void read(uint64_t begin, uint64_t count, void* out) const;

 private:
  std::filesystem::path path_;
  Fd file_;
  NpyHeader header_;
};

// The file appears under its name when close() has written all of it (base/file.h).
class NpyWriter {
 public:
  // `row_shape`: of one row. Throws ConfigError.
  NpyWriter(std::filesystem::path path, NpyType type, const std::vector<uint64_t>& row_shape);

  void write(std::span<const std::byte> rows);  // whole rows
  void close();

 private:
  std::filesystem::path path_;
  NpyType type_;
  std::vector<uint64_t> shape_;
  size_t row_bytes_;
  size_t header_bytes_ = 0;
  NewFile file_;
};

}  // namespace ddip::data
