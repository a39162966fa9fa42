// A descriptor that stands for a process, whatever its number is given to later; readable when the process has ended.
#pragma once

#include <sys/types.h>

#include "ddip/base/fd.h"

namespace ddip {

// Empty, with errno, if there is no such process.
Fd open_pidfd(pid_t pid);

}  // namespace ddip
