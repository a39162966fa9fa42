// Tensors as bytes in a .safetensors file.
#pragma once

#include <filesystem>
#include <span>

#include "ddip/base/fd.h"
#include "ddip/checkpoint/safetensors_header.h"

namespace ddip::checkpoint {

struct NamedBytes {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
};

struct WrittenFile {
  uint64_t bytes = 0;
  std::string sha256;  // in hexadecimal
};

// The file appears when it is whole and on the disk. Throws ConfigError if it cannot be made, std::runtime_error if
// writing fails.
WrittenFile write_safetensors(const std::filesystem::path& path, const std::vector<NamedBytes>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

class SafetensorsFile {
 public:
  // Throws ConfigError: one line with the file's name and what is wrong with it.
  explicit SafetensorsFile(std::filesystem::path path);

  const SafetensorsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return path_; }
  // REQUIRES: `out` has room for entry.end - entry.begin bytes. Throws ConfigError if the file became shorter.
  void read(const TensorEntry& entry, void* out) const;
  // Reads all of it.
  WrittenFile fingerprint() const;

 private:
  std::filesystem::path path_;
  Fd file_;
  uint64_t file_bytes_ = 0;
  uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
};

}  // namespace ddip::checkpoint
