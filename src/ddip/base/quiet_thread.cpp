#include "ddip/base/quiet_thread.h"

#include <signal.h>

#include <utility>

namespace ddip {

std::thread start_quiet_thread(std::function<void()> body) {
  sigset_t all, before;
  ::sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigdelset(&all, fault);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // a new thread has its maker's mask
  std::thread thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace ddip
