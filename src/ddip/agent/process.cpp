#include "ddip/agent/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include "ddip/base/error.h"
#include "ddip/base/pidfd.h"

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

}  // namespace ddip::agent
