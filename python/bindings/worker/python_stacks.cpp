#include "worker/python_stacks.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include "ddip/base/fd.h"

namespace ddip::bindings {
namespace {

// Exported by CPython for faulthandler; writes "Thread 0x…:\n  File \"x.py\", line 3 in f\n…" for every thread.
using DumpThreads = const char* (*)(int fd, PyInterpreterState* interpreter, PyThreadState* current);

std::string dump_all(PyInterpreterState* interpreter) {
  static auto dump = reinterpret_cast<DumpThreads>(::dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads"));
  if (!dump) return "";
  Fd file(::memfd_create("stacks", MFD_CLOEXEC));
  if (!file) return "";
  dump(file.get(), interpreter, nullptr);
  ::lseek(file.get(), 0, SEEK_SET);
  std::string text;
  std::array<char, 4096> part;
  for (ssize_t count; (count = ::read(file.get(), part.data(), part.size())) > 0;) text.append(part.data(), static_cast<size_t>(count));
  return text;
}

}  // namespace

std::string read_python_stacks(PyInterpreterState* interpreter) {
  std::string text = dump_all(interpreter);
  // CPython lists the newest thread first; the main thread is the oldest.
  size_t thread = text.rfind("Thread 0x");
  if (thread == std::string::npos) return "";
  size_t begin = text.find('\n', thread);
  return begin == std::string::npos ? "" : text.substr(begin + 1);
}

}  // namespace ddip::bindings
