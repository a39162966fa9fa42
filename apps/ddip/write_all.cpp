#include "write_all.h"

#include <unistd.h>

#include <cerrno>

#include "ddip/base/error.h"

namespace ddip::app {

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) throw_errno("write");
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace ddip::app
