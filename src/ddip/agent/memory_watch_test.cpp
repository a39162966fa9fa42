#include "ddip/agent/memory_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace ddip::agent {
namespace {

// What the kernel would show, in a folder of its own.
class MemoryWatchTest : public testing::Test {
 protected:
  MemoryWatchTest() : root(testing::TempDir() + "memory_watch_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(root);
    write("proc/vmstat", "nr_free_pages 5\noom_kill 3\nnr_x 1\n");
    write("proc/meminfo", "MemTotal:       24683520 kB\nMemFree: 1 kB\n");
  }
  ~MemoryWatchTest() override { std::filesystem::remove_all(root); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }

  std::filesystem::path root;
};

}  // namespace

TEST_F(MemoryWatchTest, kill_in_a_cgroup_of_version_1_is_told_with_its_limit) {
  write("proc/7/cgroup", "8:pids:/\n4:cpu,memory:/job/rank\n0::/\n");
  write("sys/fs/cgroup/memory/job/rank/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  write("sys/fs/cgroup/memory/job/rank/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "536870912\n");
  MemoryWatch watch(root);
  watch.look(7);
  EXPECT_EQ(watch.why_killed(), "") << "somebody killed it";
  write("sys/fs/cgroup/memory/job/rank/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  EXPECT_EQ(watch.why_killed(), "out of memory: the kernel killed it (SIGKILL); the limit of its cgroup is 512 MiB");
  watch.look(7);
  EXPECT_EQ(watch.why_killed(), "") << "that was the one before";
}

TEST_F(MemoryWatchTest, kill_in_a_cgroup_of_version_2_is_told_with_the_smallest_limit_above) {
  write("proc/7/cgroup", "0::/user.slice/run.scope\n");
  write("sys/fs/cgroup/user.slice/run.scope/memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\n");
  write("sys/fs/cgroup/user.slice/run.scope/memory.max", "max\n");
  write("sys/fs/cgroup/user.slice/memory.max", "8589934592\n");
  MemoryWatch watch(root);
  watch.look(7);
  EXPECT_EQ(watch.why_killed(), "");
  write("sys/fs/cgroup/user.slice/run.scope/memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n");
  EXPECT_EQ(watch.why_killed(), "out of memory: the kernel killed it (SIGKILL); the limit of its cgroup is 8.0 GiB");
}

TEST_F(MemoryWatchTest, path_of_the_host_inside_a_container_leads_to_what_is_mounted) {
  write("proc/7/cgroup", "4:memory:/docker/abc\n");
  write("sys/fs/cgroup/memory/memory.oom_control", "oom_kill 0\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  MemoryWatch watch(root);
  watch.look(7);
  write("sys/fs/cgroup/memory/memory.oom_control", "oom_kill 1\n");
  EXPECT_EQ(watch.why_killed(), "out of memory: the kernel killed it (SIGKILL); the limit of its cgroup is 1024 MiB");
}

TEST_F(MemoryWatchTest, kill_that_only_the_machine_counts_is_probable_and_names_its_memory) {
  write("proc/7/cgroup", "0::/\n");
  write("sys/fs/cgroup/cgroup.procs", "");
  MemoryWatch watch(root);
  watch.look(7);
  write("proc/vmstat", "oom_kill 4\n");
  EXPECT_EQ(
      watch.why_killed(),
      "probably out of memory: killed by SIGKILL when the kernel killed for want of memory; the machine has 23.5 GiB");
}

TEST_F(MemoryWatchTest, process_that_is_gone_leaves_what_was_noted) {
  write("proc/7/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.events", "oom_kill 0\n");
  MemoryWatch watch(root);
  watch.look(7);
  write("sys/fs/cgroup/a/memory.events", "oom_kill 1\n");
  watch.look(8);
  write("proc/7/stat", "7 (a) name) Z 1 7 7\n");
  write("proc/7/cgroup", "0::/\n");
  watch.look(7);
  EXPECT_NE(watch.why_killed(), "");
  EXPECT_EQ(MemoryWatch(root).why_killed(), "") << "nothing was ever seen";
}

}  // namespace ddip::agent
