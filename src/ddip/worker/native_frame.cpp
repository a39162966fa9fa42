#include "ddip/worker/native_frame.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>
#include "ddip/base/proc_file.h"

namespace ddip::worker {
namespace {

constexpr size_t kMaxWords = 2048;

struct Mapping {
  uintptr_t begin, end;
  bool executable;
};

std::vector<Mapping> read_mappings() {
  std::vector<Mapping> mappings;
  std::ifstream file("/proc/self/maps");
  for (std::string line; std::getline(file, line);) {
    uintptr_t begin = 0, end = 0;
    char flags[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, flags) == 3)
      mappings.push_back({begin, end, flags[2] == 'x'});
  }
  return mappings;
}

const Mapping* find(const std::vector<Mapping>& mappings, uintptr_t address) {
  for (const Mapping& mapping : mappings) {
    if (address >= mapping.begin && address < mapping.end) return &mapping;
  }
  return nullptr;
}

const char* syscall_name(long number) {
  switch (number) {
    case SYS_futex: return "futex";
    case SYS_epoll_wait:
    case SYS_epoll_pwait: return "epoll";
    case SYS_poll:
    case SYS_ppoll:
    case SYS_select:
    case SYS_pselect6: return "poll";
    case SYS_nanosleep:
    case SYS_clock_nanosleep: return "sleep";
    case SYS_read:
    case SYS_pread64:
    case SYS_recvfrom:
    case SYS_recvmsg: return "read";
    case SYS_write:
    case SYS_pwrite64:
    case SYS_sendto:
    case SYS_sendmsg: return "write";
    case SYS_wait4:
    case SYS_waitid: return "wait for a process";
    default: return nullptr;
  }
}

std::string base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

std::string function_name(const char* symbol) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = status == 0 && demangled ? demangled : symbol;
  std::free(demangled);
  if (size_t arguments = name.find('('); arguments != std::string::npos && arguments > 0) name.resize(arguments);
  return name;
}

bool is_plumbing(const std::string& library) {
  for (const char* name : {"libc.so", "libpthread", "libstdc++", "ld-linux", "libpython", "python"}) {
    if (library.rfind(name, 0) == 0) return true;
  }
  return false;
}

// Copied by the kernel, because the thread runs on: a stack that is gone meanwhile is an error there, not a crash here.
std::vector<uintptr_t> read_stack(uintptr_t begin, uintptr_t end) {
  std::vector<uintptr_t> words(std::min(kMaxWords, (end - begin) / sizeof(uintptr_t)));
  iovec into{words.data(), words.size() * sizeof(uintptr_t)};
  iovec from{reinterpret_cast<void*>(begin), into.iov_len};
  ssize_t count = ::process_vm_readv(::getpid(), &into, 1, &from, 1, 0);
  words.resize(count > 0 ? static_cast<size_t>(count) / sizeof(uintptr_t) : 0);
  return words;
}

}  // namespace

std::string native_frame(pid_t thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/syscall", thread));
  std::string text;
  if (!std::getline(file, text)) return "";
  if (text.rfind("running", 0) == 0) return "on the CPU";
  std::istringstream words(text);
  std::vector<std::string> parts;
  for (std::string word; words >> word;) parts.push_back(word);
  if (parts.size() < 3) return "";
  long number = std::strtol(parts.front().c_str(), nullptr, 10);
  uintptr_t stack = std::strtoul(parts[parts.size() - 2].c_str(), nullptr, 16);
  const char* call = syscall_name(number);
  std::string sleeping = call ? call : fmt::format("system call {}", number);

  std::vector<Mapping> mappings = read_mappings();
  const Mapping* area = find(mappings, stack);
  if (!area) return sleeping;
  for (uintptr_t address : read_stack(stack & ~uintptr_t{7}, area->end)) {
    const Mapping* code = find(mappings, address);
    Dl_info info{};
    if (!code || !code->executable || ::dladdr(reinterpret_cast<void*>(address), &info) == 0) continue;
    if (!info.dli_sname || !info.dli_fname || is_plumbing(base_name(info.dli_fname))) continue;
    // _ZT…: tables and names of types, which share the pages of code in some libraries.
    if (std::strncmp(info.dli_sname, "_ZT", 3) == 0) continue;
    return fmt::format("{} in {} ({})", function_name(info.dli_sname), base_name(info.dli_fname), sleeping);
  }
  return sleeping;
}

long cpu_ticks(pid_t thread) {
  std::string text = read_proc_file(fmt::format("/proc/self/task/{}/stat", thread));
  size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return -1;
  std::istringstream words(text.substr(after_name + 2));
  std::string word;
  long ticks = 0;
  for (int field = 3; words >> word && field <= 15; ++field) {
    if (field == 14 || field == 15) ticks += std::strtol(word.c_str(), nullptr, 10);
  }
  return ticks;
}

}  // namespace ddip::worker
