// Regular files: opened without surprises, read at a place, and written so that the name shows the whole file or
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "ddip/base/fd.h"

namespace ddip {

struct OpenFile {
  Fd file;
  uint64_t bytes = 0;
};

// Throws ConfigError, "path: why", also for what is no regular file; never waits (a FIFO would).
OpenFile open_regular(const std::filesystem::path& path);

// As many bytes as there are, up to `bytes`. Throws std::runtime_error, "path: why".
size_t read_at(const Fd& file, const std::filesystem::path& path, void* out, size_t bytes, uint64_t offset);

// All of a file that has at most `most` bytes. Throws ConfigError, "path: why".
std::string read_small_file(const std::filesystem::path& path, uint64_t most);

// The file appears under its name when publish() has written all of it to the disk; before, or if publish() is never
// called or fails, there is nothing of that name, or the old one.
class NewFile {
 public:
  // Throws ConfigError if it cannot be made.
  explicit NewFile(std::filesystem::path path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Both throw std::runtime_error, "path: why".
  void write(std::span<const std::byte> bytes, uint64_t offset);
  void publish();

 private:
  std::filesystem::path path_;
  std::filesystem::path unfinished_;
  Fd file_;
};

// A rename is on the disk when its folder is. Throws std::runtime_error.
void sync_folder(const std::filesystem::path& folder);

}  // namespace ddip
