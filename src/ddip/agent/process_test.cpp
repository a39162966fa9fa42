#include "ddip/agent/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "ddip/base/error.h"
#include "ddip/base/pidfd.h"
#include "ddip/base/process_scan.h"

namespace ddip::agent {
namespace {

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  return {Fd(ends[0]), Fd(ends[1])};
}

std::string read_to_end(const Fd& fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t count; (count = ::read(fd.get(), bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<size_t>(count));
  return text;
}

Fd file_with(const std::string& text) {
  Fd file(::memfd_create("process_test", MFD_CLOEXEC));
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::lseek(file.get(), 0, SEEK_SET) != 0)
    std::abort();
  return file;
}

// Runs a shell script to its end; what it wrote to 1.
std::string run_shell(const std::string& script, Command command = {}) {
  auto [read_end, write_end] = make_pipe();
  command.argv = {"/bin/sh", "-c", script};
  command.output = write_end.get();
  pid_t pid = start(command);
  write_end.reset();
  std::string text = read_to_end(read_end);
  ::waitpid(pid, nullptr, 0);
  return text;
}

std::string refusal(const Command& command) {
  try {
    start(command);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string unique_marker() { return "process_test." + std::to_string(::getpid()) + "." + std::to_string(::random()); }

void wait_dead(pid_t pid) {
  Fd pidfd = open_pidfd(pid);
  pollfd event{pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&event, 1, 5000), 1) << pid << " lives on";
}

}  // namespace

TEST(Process, program_that_cannot_be_executed_is_named_with_the_reason_and_leaves_no_child) {
  EXPECT_EQ(refusal({.argv = {"/no/such/program"}}), "cannot start /no/such/program: No such file or directory");
  EXPECT_EQ(refusal({.argv = {"/etc/passwd"}}), "cannot start /etc/passwd: Permission denied");
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a zombie is left";
}

TEST(Process, folder_that_is_not_there_is_named_with_the_reason) {
  EXPECT_EQ(refusal({.argv = {"/bin/true"}, .environment = {}, .folder = "/no/such/folder", .descriptors = {}}),
            "cannot start /bin/true: its working folder /no/such/folder: No such file or directory");
}

TEST(Process, descriptors_become_three_four_and_so_on_whatever_their_numbers_were) {
  // One at a place that another must take, the same one twice, and one far away.
  Fd first = file_with("first"), second = file_with("second");
  Fd far(::fcntl(second.get(), F_DUPFD_CLOEXEC, 100));
  Command command;
  command.descriptors = {far.get(), first.get(), first.get()};
  EXPECT_EQ(run_shell("cat <&3; echo; cat /proc/self/fd/4; echo; cat /proc/self/fd/5", command),
            "second\nfirst\nfirst");
}

TEST(Process, places_may_be_swapped) {
  // In a child, so that 3 and 4 can be filled without hurting the test program.
  pid_t pid = ::fork();
  if (pid == 0) {
    Fd a = file_with("a"), b = file_with("b");
    ::dup2(a.get(), 203);
    ::dup2(b.get(), 204);
    ::dup2(203, 3);
    ::dup2(204, 4);
    Command command;
    command.descriptors = {4, 3};
    ::_exit(run_shell("cat <&3; cat <&4", command) == "ba" ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Process, nothing_else_is_inherited) {
  Fd leak(::open("/dev/null", O_RDONLY));  // without close-on-exec
  Fd given = file_with("x");
  Command command;
  command.descriptors = {given.get()};
  EXPECT_EQ(run_shell("cd /proc/self/fd; for fd in *; do echo $fd; done", command).substr(0, 8), "0\n1\n2\n3\n")
      << "0-3 are there";
  // The shell itself may have opened the folder, but nothing of ours.
  EXPECT_EQ(run_shell("test -e /proc/self/fd/" + std::to_string(leak.get() < 10 ? 50 : leak.get()) + " && echo leaked",
                      command),
            "");
}

TEST(Process, standard_input_is_empty_and_output_and_error_go_where_they_should) {
  auto [read_end, write_end] = make_pipe();
  Command command;
  command.error = write_end.get();
  EXPECT_EQ(run_shell("cat; echo out; echo err >&2", command), "out\n");
  write_end.reset();
  EXPECT_EQ(read_to_end(read_end), "err\n");
}

TEST(Process, environment_is_exactly_what_was_given_and_the_folder_is_entered) {
  Command command;
  command.environment = {{"ONLY", "this one"}};
  command.folder = "/usr";
  EXPECT_EQ(run_shell("echo $ONLY; echo ${HOME-none}; pwd", command), "this one\nnone\n/usr\n");
}

TEST(Process, lives_in_a_group_of_its_own_with_ordinary_signals) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  auto* old = ::signal(SIGINT, SIG_IGN);
  Command command;
  command.argv = {"/bin/sleep", "60"};
  pid_t pid = start(command);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::signal(SIGINT, old);
  EXPECT_EQ(::getpgid(pid), pid);
  ::kill(-pid, SIGINT);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << "neither blocked nor ignored";
}

TEST(Process, pidfd_tells_the_end) {
  pid_t pid = start({.argv = {"/bin/sleep", "60"}});
  Fd pidfd = open_pidfd(pid);
  pollfd event{pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&event, 1, 0), 0);
  ::kill(pid, SIGKILL);
  EXPECT_EQ(::poll(&event, 1, 5000), 1);
  ::waitpid(pid, nullptr, 0);
  EXPECT_FALSE(open_pidfd(pid)) << "gone";
}

TEST(Process, processes_are_found_by_the_whole_value_of_their_marker) {
  std::string marker = unique_marker();
  Command sleep;
  sleep.argv = {"/bin/sleep", "60"};
  sleep.environment = {{"A", "b"}, {"PROCESS_TEST", marker}, {"Z", "z"}};
  pid_t ours = start(sleep);
  sleep.environment = {{"PROCESS_TEST", marker + "x"}};
  pid_t longer = start(sleep);
  sleep.environment = {{"NOT_PROCESS_TEST", marker}};
  pid_t other = start(sleep);
  EXPECT_EQ(processes_with("PROCESS_TEST", marker), std::vector<pid_t>{ours});
  for (pid_t pid : {ours, longer, other}) ::kill(pid, SIGKILL);
  wait_dead(ours);
  EXPECT_EQ(processes_with("PROCESS_TEST", marker), std::vector<pid_t>{}) << "a zombie is no process";
  for (pid_t pid : {ours, longer, other}) ::waitpid(pid, nullptr, 0);
}

TEST(Process, one_that_becomes_another_program_all_the_time_is_seen_by_every_look) {
  std::string marker = unique_marker();
  const std::string again = "[ $1 -gt 0 ] && exec /bin/sh -c \"$0\" \"$0\" $(($1 - 1))";
  // Some ten seconds of it, should nobody live to end it.
  Command command{.argv = {"/bin/sh", "-c", again, again, "20000"}, .environment = {{"PROCESS_TEST", marker}}};
  // Read in one call or not at all: what comes after the first page would be of another program.
  for (int number = 0; number < 100; ++number) command.environment[fmt::format("A{}", number)] = std::string(100, 'a');
  pid_t pid = start(command);
  int missed = 0, unknown = 0;
  for (int look = 0; look < 300; ++look) {
    missed += processes_with("PROCESS_TEST", marker) != std::vector<pid_t>{pid};
    unknown += variable_of(pid, "PROCESS_TEST") != marker;
  }
  EXPECT_EQ(missed, 0);
  EXPECT_EQ(unknown, 0);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST(Process, sweep_kills_all_with_the_marker_their_children_too_and_spares_the_rest) {
  std::string marker = unique_marker();
  auto [read_end, write_end] = make_pipe();
  Command command;
  // The grandchild leaves the process group, the session and its parent: only the marker is left.
  command.argv = {"/bin/sh", "-c", "setsid sh -c 'sleep 60 & echo $!; wait' & sleep 60"};
  command.environment = {{"PROCESS_TEST", marker}, {"PATH", "/usr/bin:/bin"}};
  command.output = write_end.get();
  pid_t parent = start(command);
  std::string line(16, '\0');
  ASSERT_GT(::read(read_end.get(), line.data(), line.size()), 0);  // the grandchild is there
  Command other;
  other.argv = {"/bin/sleep", "60"};
  pid_t spared_by_marker = start(other);
  other.environment = {{"PROCESS_TEST", marker}};
  pid_t spared_by_name = start(other);
  ASSERT_GE(processes_with("PROCESS_TEST", marker).size(), 3u);

  EXPECT_EQ(sweep_processes_with("PROCESS_TEST", marker, {spared_by_name}), 0u);

  EXPECT_EQ(processes_with("PROCESS_TEST", marker), std::vector<pid_t>{spared_by_name});
  EXPECT_EQ(::kill(parent, 0), -1);
  EXPECT_EQ(::kill(spared_by_marker, 0), 0);
  for (pid_t pid : {spared_by_marker, spared_by_name}) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

TEST(Process, sweep_of_nothing_is_quick_and_touches_nobody) {
  pid_t pid = start({.argv = {"/bin/sleep", "60"}});
  EXPECT_EQ(sweep_processes_with("PROCESS_TEST", unique_marker(), {}), 0u);
  EXPECT_EQ(::kill(pid, 0), 0);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace ddip::agent
