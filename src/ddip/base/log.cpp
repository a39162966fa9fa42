#include "ddip/base/log.h"

#include <time.h>
#include <unistd.h>

namespace ddip {

void log_line(std::string_view line) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  // One write per line, so that lines of several threads and processes never mix.
  std::string text = fmt::format("{:02}:{:02}:{:02}.{:06} {} {}\n", parts.tm_hour, parts.tm_min, parts.tm_sec,
                                 now.tv_nsec / 1000, ::getpid(), line);
  [[maybe_unused]] ssize_t written = ::write(2, text.data(), text.size());
}

}  // namespace ddip
