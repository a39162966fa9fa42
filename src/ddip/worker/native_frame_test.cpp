#include "ddip/worker/native_frame.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <thread>

#include "ddip/base/fd.h"

namespace ddip::worker {
namespace {

// A thread that does `what` until the test lets go.
template <typename What>
struct Busy {
  explicit Busy(What what)
      : thread([this, what] {
          id = static_cast<pid_t>(::syscall(SYS_gettid));
          what();
        }) {
    while (id == 0) std::this_thread::yield();
  }
  std::atomic<pid_t> id = 0;
  std::thread thread;
};

}  // namespace

TEST(NativeFrame, sleeping_thread_is_found_in_its_system_call) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Fd read_end(ends[0]), write_end(ends[1]);
  Busy reader([fd = read_end.get()] {
    char byte;
    [[maybe_unused]] ssize_t count = ::read(fd, &byte, 1);
  });
  std::string where;
  for (int round = 0; round < 1000 && where.find("read") == std::string::npos; ++round) {
    where = native_frame(reader.id);
    ::usleep(1000);
  }
  EXPECT_NE(where.find("read"), std::string::npos) << where;
  write_end.reset();
  reader.thread.join();
}

TEST(NativeFrame, computing_thread_is_on_the_cpu_and_its_ticks_grow) {
  std::atomic<bool> stop = false;
  Busy computing([&stop] {
    while (!stop) {
    }
  });
  long before = cpu_ticks(computing.id);
  EXPECT_GE(before, 0);
  for (int round = 0; round < 5000 && cpu_ticks(computing.id) == before; ++round) ::usleep(1000);
  EXPECT_GT(cpu_ticks(computing.id), before);
  EXPECT_EQ(native_frame(computing.id), "on the CPU");
  stop = true;
  computing.thread.join();
}

TEST(NativeFrame, thread_that_is_gone_says_nothing) {
  pid_t nobody = 0x7ffffff;
  EXPECT_EQ(native_frame(nobody), "");
  EXPECT_EQ(cpu_ticks(nobody), -1);
}

}  // namespace ddip::worker
