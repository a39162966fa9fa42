// Where a thread of this process is in native code, read without stopping it.
#pragma once

#include <sys/types.h>

#include <string>

namespace ddip::worker {

// "c10d::Work::wait(…) in libtorch_cpu.so (futex)": the innermost function on the thread's stack that is not the C
// library's, and the system call it sleeps in. "on the CPU" while it computes. Empty: could not be read.
//
// Admitted limit: the stack is scanned for return addresses, not unwound (that needs the registers, and those need
// ptrace or a signal, which would cut a sleep short), so a stale address may be reported.
std::string native_frame(pid_t thread);

// Clock ticks of CPU time that the thread has used; -1: could not be read.
long cpu_ticks(pid_t thread);

}  // namespace ddip::worker
