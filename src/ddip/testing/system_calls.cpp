#include "ddip/testing/system_calls.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <exception>

#include "ddip/base/check.h"
#include "ddip/base/fd.h"

namespace ddip::testing {
namespace {

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) DDIP_CHECK(errno == EINTR, "the child is ours");
  return status;
}

// Runs `body` in a child; `entering` sees the number of each call before it is made, and may kill by returning false.
Outcome trace(const std::function<void()>& body, const std::function<bool(long number)>& entering) {
  const pid_t child = ::fork();
  DDIP_CHECK(child >= 0, "fork");
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    body();
    ::_exit(0);
  }
  wait_for(child);
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  for (;;) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    const int status = wait_for(child);
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      DDIP_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "what runs under trace ends well");
      return Outcome::finished;
    }
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
    __ptrace_syscall_info call{};
    ::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof call, &call);
    if (call.op != PTRACE_SYSCALL_INFO_ENTRY || entering(static_cast<long>(call.entry.nr))) continue;
    ::kill(child, SIGKILL);
    wait_for(child);
    return Outcome::killed;
  }
}

}  // namespace

Outcome kill_at_call(int n, const std::function<void()>& body) {
  int calls = 0;
  return trace(body, [&](long) { return ++calls != n; });
}

std::string trace_calls(const std::map<long, char>& names, const std::function<void()>& body) {
  std::string letters;
  trace(body, [&](long number) {
    const auto found = names.find(number);
    if (found != names.end()) letters += found->second;
    return true;
  });
  return letters;
}

std::string fail_calls(long number, int error, const std::function<std::string()>& body) {
  int ends[2];
  DDIP_CHECK(::pipe(ends) == 0, "pipe");
  const Fd reads(ends[0]);
  Fd writes(ends[1]);
  const pid_t child = ::fork();
  DDIP_CHECK(child >= 0, "fork");
  if (child == 0) {
    sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
                            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
                            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program = {4, filter};
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) ::_exit(1);
    std::string said;
    try {
      said = body();
    } catch (const std::exception& thrown) {
      said = thrown.what();
    }
    ::_exit(::write(writes.get(), said.data(), said.size()) < 0 ? 1 : 0);
  }
  writes.reset();
  std::string said(4096, '\0');
  size_t got = 0;
  while (const ssize_t count = ::read(reads.get(), said.data() + got, said.size() - got)) {
    if (count < 0) break;
    got += static_cast<size_t>(count);
  }
  const int status = wait_for(child);
  DDIP_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the filter was set");
  said.resize(got);
  return said;
}

}  // namespace ddip::testing
