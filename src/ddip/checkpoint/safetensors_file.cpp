#include "ddip/checkpoint/safetensors_file.h"

#include <fmt/format.h>

#include <set>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/base/file.h"
#include "ddip/checkpoint/sha256.h"

namespace ddip::checkpoint {

WrittenFile write_safetensors(const std::filesystem::path& path, const std::vector<NamedBytes>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  std::set<std::string> names;
  uint64_t at = 0;
  for (const NamedBytes& tensor : tensors) {
    DDIP_CHECK(names.insert(tensor.name).second, "names are different");
    header.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, at, at + tensor.bytes.size()});
    at += tensor.bytes.size();
  }
  NewFile file(path);
  Sha256 hash;
  WrittenFile written;
  auto append = [&](std::span<const std::byte> bytes) {
    file.write(bytes, written.bytes);
    hash.add(bytes);
    written.bytes += bytes.size();
  };
  const std::string start = format_safetensors_header(header);
  append(std::as_bytes(std::span(start)));
  for (const NamedBytes& tensor : tensors) append(tensor.bytes);
  file.publish();
  written.sha256 = hash.hexadecimal();
  return written;
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  OpenFile opened = open_regular(path_);
  file_ = std::move(opened.file);
  file_bytes_ = opened.bytes;
  try {
    std::string start(kLengthBytes, '\0');
    start.resize(read_at(file_, path_, start.data(), start.size(), 0));
    std::string json(safetensors_header_length(start, file_bytes_), '\0');
    json.resize(read_at(file_, path_, json.data(), json.size(), kLengthBytes));
    data_begin_ = kLengthBytes + json.size();
    header_ = parse_safetensors_header(json, file_bytes_ - data_begin_);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", path_.string(), error.what()));
  }
}

void SafetensorsFile::read(const TensorEntry& entry, void* out) const {
  const uint64_t bytes = entry.end - entry.begin;
  if (read_at(file_, path_, out, bytes, data_begin_ + entry.begin) != bytes)
    throw ConfigError(fmt::format("{}: it became shorter while it was read", path_.string()));
}

WrittenFile SafetensorsFile::fingerprint() const {
  Sha256 hash;
  std::string piece(1 << 20, '\0');
  uint64_t at = 0;
  while (size_t got = read_at(file_, path_, piece.data(), piece.size(), at)) {
    hash.add(std::as_bytes(std::span(piece).first(got)));
    at += got;
  }
  return {at, hash.hexadecimal()};
}

}  // namespace ddip::checkpoint
