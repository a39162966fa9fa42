#include "watchdog.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>

#include "ddip/base/error.h"
#include "ddip/base/process_scan.h"

namespace ddip::app {
namespace {

[[noreturn]] void watch(int line, const std::string& name, const std::string& marker) {
  ::setsid();  // out of reach of Ctrl-C and of who kills the job
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP}) ::signal(signal, SIG_IGN);
  ::prctl(PR_SET_NAME, "ddip-watchdog");
  // Nothing of our parent's is held: who reads its output must see it end.
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd : {0, 1, 2}) ::dup2(null, fd);
  ::dup2(line, 3);
  ::syscall(SYS_close_range, 4u, ~0u, 0u);
  char word = 0;
  ssize_t count = 0;
  do count = ::read(3, &word, 1);
  while (count < 0 && errno == EINTR);
  if (count == 0) sweep_processes_with(name, marker, {});
  ::_exit(0);
}

}  // namespace

Watchdog::Watchdog(const std::string& name, const std::string& marker) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe");
  Fd read_end(ends[0]);
  line_ = Fd(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("fork");
  if (pid_ == 0) {
    line_.reset();
    watch(read_end.get(), name, marker);
  }
}

Watchdog::~Watchdog() {
  [[maybe_unused]] const ssize_t written = ::write(line_.get(), "q", 1);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace ddip::app
