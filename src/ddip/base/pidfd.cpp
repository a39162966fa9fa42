#include "ddip/base/pidfd.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace ddip {

// Debian 12's C library has no wrapper for it.
Fd open_pidfd(pid_t pid) { return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

}  // namespace ddip
