#include "ddip/agent/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>

#include "ddip/base/error.h"
#include "ddip/base/pidfd.h"
#include "ddip/base/proc_file.h"

namespace ddip::agent {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct Failure {
  int error;  // errno
  bool in_folder;
};

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

// The child's side, between fork and exec. Never returns; a failure travels back through the pipe.
[[noreturn]] void become(const Command& command, char* const* argv, char* const* envp, int report) {
  auto give_up = [&](bool in_folder = false) {
    Failure failure{errno, in_folder};
    [[maybe_unused]] ssize_t written = ::write(report, &failure, sizeof failure);
    ::_exit(127);
  };
  ::setpgid(0, 0);
  // Move everything we keep above the numbers we are about to fill, then down to its place.
  std::vector<int> keep = {command.output, command.error};
  keep.insert(keep.end(), command.descriptors.begin(), command.descriptors.end());
  int floor = 3 + static_cast<int>(command.descriptors.size());
  for (int& fd : keep) {
    if (fd >= 0 && (fd = ::fcntl(fd, F_DUPFD_CLOEXEC, floor)) < 0) give_up();
  }
  report = ::fcntl(report, F_DUPFD_CLOEXEC, floor);
  int null = ::open("/dev/null", O_RDONLY);
  if (null < 0 || ::dup2(null, 0) < 0) give_up();
  if (keep[0] >= 0 && ::dup2(keep[0], 1) < 0) give_up();
  if (keep[1] >= 0 && ::dup2(keep[1], 2) < 0) give_up();
  for (size_t index = 2; index < keep.size(); ++index) {
    if (::dup2(keep[index], static_cast<int>(index) + 1) < 0) give_up();
  }
  // Close-on-exec for all the rest, the report pipe included: exec closes it, which is how the parent learns of
  // success.
  ::syscall(SYS_close_range, static_cast<unsigned>(floor), ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
  if (!command.folder.empty() && ::chdir(command.folder.c_str()) != 0) give_up(true);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGXFSZ}) ::signal(signal, SIG_DFL);
  ::execvpe(argv[0], argv, envp);
  give_up();
  ::_exit(127);
}

}  // namespace

pid_t start(const Command& command) {
  std::vector<std::string> arguments = command.argv;
  std::vector<std::string> variables;
  for (const auto& [name, value] : command.environment) variables.push_back(name + "=" + value);
  std::vector<char*> argv = pointers(arguments);
  std::vector<char*> envp = pointers(variables);
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) throw_errno("pipe");
  Fd read_end(report[0]), write_end(report[1]);
  pid_t pid = ::fork();
  if (pid < 0) throw_errno("fork");
  if (pid == 0) become(command, argv.data(), envp.data(), write_end.get());
  ::setpgid(pid, pid);  // on both sides of the fork: whoever comes first
  write_end.reset();
  Failure failure{};
  ssize_t count;
  do count = ::read(read_end.get(), &failure, sizeof failure);
  while (count < 0 && errno == EINTR);
  if (count == sizeof failure) {
    ::waitpid(pid, nullptr, 0);
    throw ConfigError(fmt::format("cannot start {}: {}{}", command.argv.at(0),
                                  failure.in_folder ? "its working folder " + command.folder + ": " : "",
                                  std::strerror(failure.error)));
  }
  return pid;
}

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

size_t sweep(const std::string& name, const std::string& value, const std::vector<pid_t>& spare) {
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

}  // namespace ddip::agent
