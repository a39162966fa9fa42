#include "ddip/data/npy_file.h"

#include <fmt/format.h>

#include "ddip/base/check.h"
#include "ddip/base/error.h"

namespace ddip::data {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw ConfigError(fmt::format("{}: {}", path.string(), why));
}

constexpr size_t kRoomForHeader = 256;

}  // namespace

NpyFile::NpyFile(std::filesystem::path path) : path_(std::move(path)) {
  OpenFile opened = open_regular(path_);
  file_ = std::move(opened.file);
  try {
    std::string start(12, '\0');
    start.resize(read_at(file_, path_, start.data(), start.size(), 0));
    size_t needed = npy_header_size(start);
    if (needed > start.size()) {
      start.resize(needed);
      start.resize(read_at(file_, path_, start.data(), needed, 0));
    }
    header_ = parse_npy_header(start);
    if (header_.shape.empty()) throw ConfigError("it holds one number, not rows");
    if (header_.rows() == 0) throw ConfigError("it has no rows");
    uint64_t whole = header_.header_bytes + header_.data_bytes(), there = opened.bytes;
    if (there != whole)
      throw ConfigError(fmt::format("it is {} bytes long, its header says {}: it is {}", there, whole,
                                    there < whole ? "cut off" : "followed by something else"));
  } catch (const ConfigError& error) {
    std::string text = error.what();
    if (text.starts_with(path_.string())) throw;
    refuse(path_, text);
  }
}

void NpyFile::read(uint64_t begin, uint64_t count, void* out) const {
  DDIP_CHECK(begin <= rows() && count <= rows() - begin, "rows that are there");
  size_t bytes = static_cast<size_t>(count) * row_bytes();
  size_t got = read_at(file_, path_, out, bytes, header_.header_bytes + begin * row_bytes());
  if (got != bytes)
    refuse(path_, fmt::format("it became shorter while it was read: rows {} to {} are gone",
                              begin + got / std::max<size_t>(row_bytes(), 1), begin + count - 1));
}

NpyWriter::NpyWriter(std::filesystem::path path, NpyType type, const std::vector<uint64_t>& row_shape)
    : path_(std::move(path)), type_(type), shape_{0}, row_bytes_(type.bytes), file_(path_) {
  for (uint64_t size : row_shape) {
    shape_.push_back(size);
    row_bytes_ *= size;
  }
  if (row_bytes_ == 0) refuse(path_, "rows without a number cannot be written");
  header_bytes_ = format_npy_header(type_, shape_).size();
  // The number of rows becomes longer: the header that close() writes must have the same size.
  header_bytes_ = std::max(header_bytes_, kRoomForHeader);
}

void NpyWriter::write(std::span<const std::byte> rows) {
  DDIP_CHECK(rows.size() % row_bytes_ == 0, "whole rows");
  file_.write(rows, header_bytes_ + shape_[0] * row_bytes_);
  shape_[0] += rows.size() / row_bytes_;
}

void NpyWriter::close() {
  std::string header = format_npy_header(type_, shape_);
  if (header.size() > header_bytes_) refuse(path_, "its shape has too many dimensions to be written");
  // Spaces before the line's end belong to the header.
  std::string padding(header_bytes_ - header.size(), ' ');
  header.insert(header.size() - 1, padding);
  size_t length = header_bytes_ - 10;
  header[8] = static_cast<char>(length & 0xff);
  header[9] = static_cast<char>(length >> 8);
  file_.write(std::as_bytes(std::span(header)), 0);
  file_.publish();
}

}  // namespace ddip::data
