#include "ddip/base/ending.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>

#include "ddip/base/fd.h"

namespace ddip {
namespace {

// Forks; the child does `what` and must not return from it.
template <typename What>
pid_t child(What what) {
  pid_t pid = ::fork();
  if (pid == 0) {
    what();
    ::_exit(99);
  }
  return pid;
}

// Waits until it is dead, without taking its status away.
Ending ending_of(pid_t pid) {
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  Ending ending;
  EXPECT_TRUE(reap(pid, ending));
  return ending;
}

}  // namespace

TEST(Ending, exit_code_and_signal_are_told_apart) {
  Ending exited = ending_of(child([] { ::_exit(3); }));
  EXPECT_EQ(exited.exit_code, 3);
  EXPECT_EQ(exited.signal, 0);
  EXPECT_EQ(describe(exited), "exit code 3");
  EXPECT_GT(exited.max_rss_kib, 0);
}

TEST(Ending, living_child_is_left_alone) {
  pid_t pid = child([] { ::pause(); });
  Ending ending;
  EXPECT_FALSE(reap(pid, ending));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(describe(ending_of(pid)), "killed by SIGTERM");
  EXPECT_FALSE(reap(pid, ending)) << "once only";
}

TEST(Ending, sigkill_names_the_usual_suspects) {
  pid_t pid = child([] { ::pause(); });
  ::kill(pid, SIGKILL);
  Ending ending = ending_of(pid);
  EXPECT_EQ(ending.signal, SIGKILL);
  EXPECT_EQ(describe(ending), "killed by SIGKILL (by someone, or by the kernel when memory ran out)");
}

TEST(Ending, time_that_it_used_is_counted) {
  Ending ending = ending_of(child([] {
    while (std::clock() < CLOCKS_PER_SEC / 20) {  // CPU time, so that a busy machine does not matter
    }
    ::_exit(0);
  }));
  EXPECT_GT(ending.user_seconds + ending.system_seconds, 0.01);
}

TEST(Ending, somebody_elses_process_is_not_ours_to_reap) {
  Ending ending;
  EXPECT_FALSE(reap(1, ending));
}

TEST(Ending, signal_without_a_name_keeps_its_number) { EXPECT_EQ(describe({0, 64 + 1, 0, 0, 0}), "killed by SIG65"); }

}  // namespace ddip
