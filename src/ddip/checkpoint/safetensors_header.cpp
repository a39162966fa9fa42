#include "ddip/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "ddip/base/error.h"
#include "ddip/base/strict_json.h"

namespace ddip::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so are we");

constexpr const char* kMetadata = "__metadata__";
constexpr int kDeepest = 4;  // file, tensor, shape

uint64_t whole(const json& value, const std::string& name) {
  if (!value.is_number_unsigned())
    throw ConfigError(fmt::format("{:?} has a size or place that is no whole number", name));
  return value.get<uint64_t>();
}

uint64_t bytes_of(const TensorEntry& entry) {
  uint64_t bytes = dtype_bytes(entry.dtype);
  for (uint64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes))
      throw ConfigError(fmt::format("{:?} has a shape that no memory can hold", entry.name));
  }
  return bytes;
}

TensorEntry entry_of(const std::string& name, const json& about) {
  if (!about.is_object() || about.size() != 3 || !about.contains("dtype") || !about.contains("shape") ||
      !about.contains("data_offsets"))
    throw ConfigError(fmt::format("{:?} is not described by dtype, shape and data_offsets", name));
  const json &dtype = about["dtype"], &shape = about["shape"], &offsets = about["data_offsets"];
  TensorEntry entry{.name = name, .dtype = dtype.is_string() ? dtype.get<std::string>() : ""};
  if (dtype_bytes(entry.dtype) == 0) throw ConfigError(fmt::format("{:?} has an unknown type {}", name, dtype.dump()));
  if (!shape.is_array() || !offsets.is_array() || offsets.size() != 2)
    throw ConfigError(fmt::format("{:?} has a shape or place that is no list", name));
  for (const json& size : shape) entry.shape.push_back(whole(size, name));
  entry.begin = whole(offsets[0], name);
  entry.end = whole(offsets[1], name);
  if (entry.begin > entry.end || entry.end - entry.begin != bytes_of(entry))
    throw ConfigError(
        fmt::format("{:?} has bytes {} to {}, its shape needs {}", name, entry.begin, entry.end, bytes_of(entry)));
  return entry;
}

}  // namespace

size_t dtype_bytes(std::string_view dtype) {
  static const std::map<std::string_view, size_t> known = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I64", 8}, {"I32", 4},
      {"I16", 2}, {"I8", 1},  {"U64", 8}, {"U32", 4},  {"U16", 2},     {"U8", 1},      {"BOOL", 1}};
  const auto found = known.find(dtype);
  return found == known.end() ? 0 : found->second;
}

uint64_t safetensors_header_length(std::string_view first_eight, uint64_t file_bytes) {
  if (first_eight.size() < kLengthBytes) throw ConfigError("it is too short for a safetensors file");
  uint64_t length = 0;
  std::memcpy(&length, first_eight.data(), kLengthBytes);
  if (length > kLongestHeader || length > file_bytes - kLengthBytes)
    throw ConfigError(fmt::format("its header claims {} bytes, the file has {}", length, file_bytes));
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes) {
  if (!text.starts_with('{')) throw ConfigError("its header does not begin with {");
  json parsed;
  try {
    parsed = parse_strict_json(text, kDeepest);
  } catch (const NotJson& error) {
    throw ConfigError(fmt::format("its header is damaged: {}", error.what()));
  }
  SafetensorsHeader header;
  for (const auto& [name, about] : parsed.items()) {
    if (name != kMetadata) {
      header.tensors.push_back(entry_of(name, about));
      continue;
    }
    if (!about.is_object()) throw ConfigError("its metadata is no table");
    for (const auto& [key, value] : about.items()) {
      if (!value.is_string()) throw ConfigError("its metadata holds something that is no text");
      header.metadata[key] = value.get<std::string>();
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& left, const TensorEntry& right) {
    return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
  });
  uint64_t at = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin != at)
      throw ConfigError(
          fmt::format("{:?} begins at byte {}, expected {}: tensors must touch", entry.name, entry.begin, at));
    at = entry.end;
  }
  if (at != data_bytes)
    throw ConfigError(fmt::format("its tensors need {} bytes, {} are there: it is {}", at, data_bytes,
                                  data_bytes < at ? "cut off" : "followed by something else"));
  return header;
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json text = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) text[kMetadata] = header.metadata;
  for (const TensorEntry& entry : header.tensors)
    text[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  std::string formatted = text.dump();
  formatted.resize((formatted.size() + 7) / 8 * 8, ' ');
  const uint64_t length = formatted.size();
  if (length > kLongestHeader)
    throw ConfigError(
        fmt::format("what is no tensor would take {} bytes, expected at most {}", length, kLongestHeader));
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return bytes + formatted;
}

}  // namespace ddip::checkpoint
