// The head of a .safetensors file (https://github.com/huggingface/safetensors): eight bytes of length, then JSON that
// says where each tensor lies. Pure, and strict: what does not describe exactly the bytes behind it is refused.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ddip::checkpoint {

struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32", as the format spells it
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // from the first byte behind the header
  uint64_t end = 0;

  bool operator==(const TensorEntry&) const = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // the format's own limit

// Bytes of one element; 0 for a type the format does not know.
size_t dtype_bytes(std::string_view dtype);

// How long the JSON is, from the file's first eight bytes. Throws ConfigError, without a file name.
uint64_t safetensors_header_length(std::string_view first_eight, uint64_t file_bytes);

// `json`: the bytes between; `data_bytes`: how many follow. Throws ConfigError, without a file name.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes);

// With the eight bytes in front. The data begins at a multiple of eight. Throws ConfigError if it would be longer than
// anybody reads.
std::string format_safetensors_header(const SafetensorsHeader& header);

}  // namespace ddip::checkpoint
