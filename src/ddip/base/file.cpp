#include "ddip/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ddip/base/error.h"

namespace ddip {
namespace {

std::string why(const std::filesystem::path& path) {
  return fmt::format("{}: {}", path.string(), std::strerror(errno));
}

}  // namespace

OpenFile open_regular(const std::filesystem::path& path) {
  OpenFile opened{Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), 0};
  struct stat about{};
  if (!opened.file || ::fstat(opened.file.get(), &about) != 0) throw ConfigError(why(path));
  if (!S_ISREG(about.st_mode)) throw ConfigError(path.string() + ": it is no regular file");
  opened.bytes = static_cast<uint64_t>(about.st_size);
  return opened;
}

size_t read_at(const Fd& file, const std::filesystem::path& path, void* out, size_t bytes, uint64_t offset) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t count =
        ::pread(file.get(), static_cast<char*>(out) + done, bytes - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::runtime_error(why(path));
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

std::string read_small_file(const std::filesystem::path& path, uint64_t most) {
  const OpenFile opened = open_regular(path);
  if (opened.bytes > most)
    throw ConfigError(
        fmt::format("{}: it is {} bytes long; expected at most {} MiB", path.string(), opened.bytes, most >> 20));
  std::string text(opened.bytes, '\0');
  text.resize(read_at(opened.file, path, text.data(), text.size(), 0));
  return text;
}

NewFile::NewFile(std::filesystem::path path) : path_(std::move(path)), unfinished_(path_) {
  struct stat about{};
  if (::stat(path_.c_str(), &about) == 0 && !S_ISREG(about.st_mode))
    throw ConfigError(path_.string() + ": it is there and no regular file; expected a new name");
  unfinished_ += fmt::format(".{}.part", ::getpid());
  file_ = Fd(::open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file_) throw ConfigError(why(path_));
}

NewFile::~NewFile() {
  if (file_) ::unlink(unfinished_.c_str());
}

void NewFile::write(std::span<const std::byte> bytes, uint64_t offset) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::runtime_error(why(path_));
    done += static_cast<size_t>(count);
  }
}

void NewFile::publish() {
  if (::fsync(file_.get()) != 0 || ::rename(unfinished_.c_str(), path_.c_str()) != 0)
    throw std::runtime_error(why(path_));
  file_.reset();
  sync_folder(path_.parent_path());
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path name = folder.empty() ? "." : folder;
  const Fd opened(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened || ::fsync(opened.get()) != 0) throw std::runtime_error(why(name));
}

}  // namespace ddip
