#include "ddip/base/proc_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "ddip/base/fd.h"

namespace ddip {

std::string read_proc_file(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  while (file) {
    ssize_t count = ::read(file.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return "";  // ESRCH: it is gone
    if (count == 0) break;
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

}  // namespace ddip
