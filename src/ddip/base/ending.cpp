#include "ddip/base/ending.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

namespace ddip {

bool reap(pid_t pid, Ending& ending) {
  int status = 0;
  rusage usage{};
  pid_t got;
  do got = ::wait4(pid, &status, WNOHANG, &usage);
  while (got < 0 && errno == EINTR);
  if (got != pid) return false;
  ending.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ending.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  ending.user_seconds = static_cast<double>(usage.ru_utime.tv_sec) + static_cast<double>(usage.ru_utime.tv_usec) * 1e-6;
  ending.system_seconds =
      static_cast<double>(usage.ru_stime.tv_sec) + static_cast<double>(usage.ru_stime.tv_usec) * 1e-6;
  ending.max_rss_kib = usage.ru_maxrss;
  return true;
}

std::string describe(const Ending& ending) {
  if (ending.signal == 0) return fmt::format("exit code {}", ending.exit_code);
  const char* name = ::sigabbrev_np(ending.signal);
  std::string text = fmt::format("killed by SIG{}", name ? name : std::to_string(ending.signal));
  if (ending.signal == SIGKILL) text += " (by someone, or by the kernel when memory ran out)";
  return text;
}

}  // namespace ddip
