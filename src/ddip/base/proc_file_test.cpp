#include "ddip/base/proc_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace ddip {

TEST(ProcFile, is_read_whole_and_a_missing_one_is_empty) {
  EXPECT_NE(read_proc_file("/proc/self/stat").find("(base_test)"), std::string::npos);
  EXPECT_EQ(read_proc_file("/proc/self/nothing"), "");
  EXPECT_GT(read_proc_file("/proc/self/maps").size(), 4096u);
}

// Processes that end while they are read: a text or none, never an error.
TEST(ProcFile, of_a_process_that_ends_meanwhile_is_a_text_or_empty) {
  std::atomic<pid_t> newest = 0;
  std::atomic<bool> over = false;
  std::thread reader([&] {
    while (!over) {
      std::string text = read_proc_file("/proc/" + std::to_string(newest.load()) + "/stat");
      EXPECT_TRUE(text.empty() || text.find(')') != std::string::npos) << text;
    }
  });
  for (int round = 0; round < 500; ++round) {
    pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    newest = pid;
    ::waitpid(pid, nullptr, 0);
  }
  over = true;
  reader.join();
}

}  // namespace ddip
