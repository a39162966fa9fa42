#include "worker/python_stacks.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "ddip/base/fd.h"

namespace ddip::bindings {
namespace {

// Exported by CPython for faulthandler; writes "Thread 0x…:\n  File \"x.py\", line 3 in f\n…" for every thread. It
// takes no lock and allocates nothing, so it may be left by a jump.
using DumpThreads = const char* (*)(int fd, PyInterpreterState* interpreter, PyThreadState* current);

// The frames may be freed while they are read. A bad pointer must not cost the user's process: the fault brings us
// back here, and only here; a fault of any other thread is not ours and goes on as it would have.
std::atomic<pid_t> reader{0};
sigjmp_buf back;
struct sigaction before_segv, before_bus;

pid_t this_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

void on_fault(int number) {
  if (reader.load() == this_thread()) siglongjmp(back, 1);
  // Returning repeats the instruction, and with it the fault, under the handler that was there before.
  ::sigaction(number, number == SIGSEGV ? &before_segv : &before_bus, nullptr);
}

// False: the frames changed under our eyes.
bool dump_guarded(DumpThreads dump, int file, PyInterpreterState* interpreter) {
  struct sigaction guard{};
  guard.sa_handler = on_fault;
  guard.sa_flags = SA_ONSTACK | SA_NODEFER;
  ::sigaction(SIGSEGV, &guard, &before_segv);
  ::sigaction(SIGBUS, &guard, &before_bus);
  bool whole = false;
  if (sigsetjmp(back, 1) == 0) {
    reader = this_thread();
    dump(file, interpreter, nullptr);
    whole = true;
  }
  reader = 0;
  ::sigaction(SIGSEGV, &before_segv, nullptr);
  ::sigaction(SIGBUS, &before_bus, nullptr);
  return whole;
}

std::string read_back(int file) {
  ::lseek(file, 0, SEEK_SET);
  std::string text;
  std::array<char, 4096> part;
  for (ssize_t count; (count = ::read(file, part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<size_t>(count));
  return text;
}

}  // namespace

std::string read_python_stacks(PyInterpreterState* interpreter) {
  static auto dump = reinterpret_cast<DumpThreads>(::dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads"));
  if (!dump) return "";
  std::string text;
  for (int attempt = 0; attempt < 3; ++attempt) {
    Fd file(::memfd_create("stacks", MFD_CLOEXEC));
    if (!file) return "";
    bool whole = dump_guarded(dump, file.get(), interpreter);
    text = read_back(file.get());
    if (whole) break;
  }
  // CPython lists the newest thread first; the main thread is the oldest.
  size_t thread = text.rfind("Thread 0x");
  if (thread == std::string::npos) return "";
  size_t begin = text.find('\n', thread);
  return begin == std::string::npos ? "" : text.substr(begin + 1);
}

}  // namespace ddip::bindings
