#include "ddip/base/process_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>

#include "ddip/base/error.h"
#include "ddip/base/fd.h"
#include "ddip/base/proc_file.h"

namespace ddip {
namespace {

struct Memory {
  unsigned long size, code_end, environment_begin, environment_end;
};

// As /proc tells it; zeros for a process that has none: a zombie, a thread of the kernel, one that is gone.
Memory memory_of(pid_t pid) {
  const std::string text = read_proc_file(fmt::format("/proc/{}/stat", pid));
  const size_t after_name = text.rfind(')');  // the name itself may hold blanks and brackets
  if (after_name == std::string::npos) return {};
  std::istringstream fields(text.substr(after_name + 1));
  std::string field;
  Memory memory{};
  for (int number = 3; fields >> field; ++number) {  // numbered as in proc(5)
    if (number == 23) memory.size = std::stoul(field);
    if (number == 27) memory.code_end = std::stoul(field);
    if (number == 50) memory.environment_begin = std::stoul(field);
    if (number == 51) memory.environment_end = std::stoul(field);
  }
  return memory;
}

// Its variables, each with a zero byte at its end. A process in the middle of exec shows none for a moment, though it
// will have some: who took that for an answer would let it escape. So we ask again until it is through.
std::string environment_of(pid_t pid) {
  // An exec may wait for a page from a disk.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::string bytes(1 << 16, '\0');
  do {
    const Fd file(::open(fmt::format("/proc/{}/environ", pid).c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return "";  // gone, or not for us to read
    ssize_t count = 0;     // in one call: the next would be of another program if an exec came between
    while ((count = ::pread(file.get(), bytes.data(), bytes.size(), 0)) == static_cast<ssize_t>(bytes.size()))
      bytes.resize(2 * bytes.size());
    if (count > 0) return bytes.substr(0, static_cast<size_t>(count));
    const Memory memory = memory_of(pid);
    const bool in_exec = memory.size != 0 && memory.code_end == 0;  // which is the last that an exec fills in
    if (!in_exec && memory.environment_begin == memory.environment_end) return "";
    ::usleep(100);
  } while (std::chrono::steady_clock::now() < deadline);
  return "";
}

}  // namespace

std::vector<pid_t> processes_with(const std::string& name, const std::string& value) {
  std::vector<pid_t> found;
  std::string wanted = name + "=" + value;
  DIR* folder = ::opendir("/proc");
  if (!folder) throw_errno("open /proc");
  while (dirent* entry = ::readdir(folder)) {
    pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0 || pid == ::getpid()) continue;
    std::string environment = environment_of(pid);
    // A zombie has no environment left, so only live processes match.
    std::string_view rest = environment;
    while (!rest.empty()) {
      size_t end = std::min(rest.find('\0'), rest.size());
      if (rest.substr(0, end) == wanted) {
        found.push_back(pid);
        break;
      }
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  ::closedir(folder);
  return found;
}

std::vector<pid_t> descendants_of(pid_t pid) {
  std::multimap<pid_t, pid_t> children;
  DIR* folder = ::opendir("/proc");
  if (!folder) throw_errno("open /proc");
  while (dirent* entry = ::readdir(folder)) {
    pid_t child = std::atoi(entry->d_name);
    if (child <= 0) continue;
    std::string text = read_proc_file(fmt::format("/proc/{}/stat", child));
    size_t after_name = text.rfind(')');  // the name itself may hold blanks and brackets
    char state = 0;
    pid_t parent = 0;
    if (after_name != std::string::npos && std::sscanf(text.c_str() + after_name + 1, " %c %d", &state, &parent) == 2)
      children.emplace(parent, child);
  }
  ::closedir(folder);
  std::vector<pid_t> found;
  std::vector<pid_t> todo = {pid};
  while (!todo.empty()) {
    auto [begin, end] = children.equal_range(todo.back());
    todo.pop_back();
    for (auto child = begin; child != end; ++child) {
      found.push_back(child->second);
      todo.push_back(child->second);
    }
  }
  return found;
}

std::string variable_of(pid_t pid, const std::string& name) {
  std::istringstream environment(environment_of(pid));
  for (std::string entry; std::getline(environment, entry, '\0');) {
    if (entry.rfind(name + "=", 0) == 0) return entry.substr(name.size() + 1);
  }
  return "";
}

size_t sweep_processes_with(const std::string& name, const std::string& value, const std::vector<pid_t>& spare) {
  size_t left = 0;
  for (int round = 0; round < 20; ++round) {
    left = 0;
    for (pid_t pid : processes_with(name, value)) {
      if (std::find(spare.begin(), spare.end(), pid) != spare.end()) continue;
      ++left;
      ::kill(pid, SIGKILL);
    }
    if (left == 0) break;
    ::usleep(5000);  // a killed process needs a moment to go; nothing else runs in this process meanwhile
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {  // one that went between the last two looks
  }
  return left;
}

}  // namespace ddip
