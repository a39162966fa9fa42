// A file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace ddip {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

  // A second descriptor for the same open file, closed on exec.
  Fd duplicate() const;

 private:
  int fd_ = -1;
};

// The same file, but never as 0, 1 or 2. Those are free while a program has closed its standard streams, and whoever
// puts them back would close ours. Nothing stays nothing; errno is kept.
Fd above_standard(Fd fd);

}  // namespace ddip
