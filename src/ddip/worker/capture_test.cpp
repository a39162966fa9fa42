#include "ddip/worker/capture.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <thread>

#include "ddip/testing/own_output.h"
#include "ddip/testing/run_until.h"

namespace ddip::worker {
namespace {

using namespace std::chrono_literals;

class CaptureTest : public testing::Test {
 protected:
  CaptureTest()
      : capture(std::make_unique<Capture>(
            loop, [this](uint64_t cell, Stream stream, std::string bytes) { seen[{cell, stream}] += bytes; })) {}
  void TearDown() override {
    capture.reset();
    output.restore();
  }

  void put(int fd, std::string_view text) {
    ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string& out(uint64_t cell) { return seen[{cell, Stream::out}]; }
  std::string& err(uint64_t cell) { return seen[{cell, Stream::err}]; }
  static size_t open_descriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  }

  OwnOutput output;
  net::Loop loop;
  std::map<std::pair<uint64_t, Stream>, std::string> seen;
  std::unique_ptr<Capture> capture;
};

}  // namespace

TEST_F(CaptureTest, cell_that_closes_its_streams_does_not_harm_the_next) {
  capture->switch_to(1);
  ::close(1);
  ::close(2);
  capture->prepare();  // whose pipes must not become 1 and 2
  capture->switch_to(0);
  ::close(1);  // by a file of the cell that had this number and closes only now
  capture->prepare();
  for (uint64_t cell : {2, 3}) {
    capture->switch_to(cell);
    put(1, "said");
    put(2, "said, too");
    capture->switch_to(0);
    capture->prepare();
    EXPECT_TRUE(net::run_until(loop, [&] { return out(cell) == "said" && err(cell) == "said, too"; })) << cell;
  }
}

TEST_F(CaptureTest, what_is_written_belongs_to_the_cell_of_that_time) {
  put(1, "before");
  capture->switch_to(1);
  put(1, "one");
  put(2, "error of one");
  capture->switch_to(0);
  put(1, " between");
  capture->switch_to(2);
  put(1, "two");
  capture->switch_to(0);
  EXPECT_TRUE(net::run_until(loop, [&] { return out(2) == "two" && out(0) == "before between"; }));
  EXPECT_EQ(out(1), "one");
  EXPECT_EQ(err(1), "error of one");
  EXPECT_EQ(err(2), "");
}

TEST_F(CaptureTest, subprocess_that_prints_after_its_cell_still_belongs_to_it) {
  capture->switch_to(1);
  int go[2];
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  pid_t pid = ::fork();
  if (pid == 0) {
    char byte;
    ::close(go[1]);
    [[maybe_unused]] ssize_t count = ::read(go[0], &byte, 1);
    count = ::write(1, "late", 4);
    ::_exit(0);
  }
  ::close(go[0]);
  capture->switch_to(0);
  capture->switch_to(2);
  put(1, "two");
  ::close(go[1]);
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(net::run_until(loop, [&] { return out(1) == "late"; }));
  capture->switch_to(0);
  EXPECT_EQ(out(2), "two");
}

TEST_F(CaptureTest, cell_that_is_watched_is_heard_while_it_runs_and_others_at_their_end) {
  net::run_turns(loop);  // the pair between cells is watched by now
  capture->switch_to(1);
  put(1, "while it runs");
  net::run_turns(loop);
  EXPECT_EQ(out(1), "");
  capture->watch_current();
  EXPECT_TRUE(net::run_until(loop, [&] { return out(1) == "while it runs"; }));
  put(1, ", still");
  EXPECT_TRUE(net::run_until(loop, [&] { return out(1) == "while it runs, still"; }));
  capture->switch_to(0);
}

TEST_F(CaptureTest, drain_gives_what_was_written_before_it_and_does_not_need_the_loop) {
  capture->switch_to(1);
  put(1, "first");
  capture->drain(1, Stream::out);
  EXPECT_EQ(out(1), "first");
  put(2, "other stream");
  capture->drain(1, Stream::out);
  EXPECT_EQ(err(1), "") << "one stream only";
  capture->drain(1, Stream::err);
  EXPECT_EQ(err(1), "other stream");
  capture->drain(77, Stream::out);  // no such cell: nothing
  capture->switch_to(0);
}

TEST_F(CaptureTest, drain_takes_a_whole_full_pipe) {
  capture->switch_to(1);
  ::fcntl(1, F_SETFL, O_NONBLOCK);
  std::string block(1000, 'b');
  size_t written = 0;
  for (ssize_t count; (count = ::write(1, block.data(), block.size())) > 0;) written += static_cast<size_t>(count);
  EXPECT_GT(written, 60000u);
  capture->drain(1, Stream::out);
  EXPECT_EQ(out(1).size(), written);
  capture->switch_to(0);
}

TEST_F(CaptureTest, drain_comes_back_though_somebody_floods_the_pipe) {
  capture->switch_to(1);
  std::vector<pid_t> children;
  for (int count = 0; count < 2; ++count) {
    pid_t pid = ::fork();
    if (pid == 0) {
      std::string block(65536, 'f');
      while (::write(1, block.data(), block.size()) > 0) {
      }
      ::_exit(0);
    }
    children.push_back(pid);
  }
  for (int round = 0; round < 200; ++round) {
    size_t before = out(1).size();
    capture->drain(1, Stream::out);
    ASSERT_LE(out(1).size() - before, 65536u) << "more than the pipe can have held when it was asked";
  }
  for (pid_t pid : children) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  capture->switch_to(0);
}

TEST_F(CaptureTest, end_brings_out_what_lies_in_the_buffers_of_c) {
  capture->switch_to(1);
  std::printf("no newline");
  std::fprintf(stderr, "nor here");
  capture->switch_to(0);
  EXPECT_EQ(out(1), "no newline");
  EXPECT_EQ(err(1), "nor here");
}

TEST_F(CaptureTest, pipes_of_finished_cells_are_closed) {
  net::run_turns(loop);
  capture->prepare();  // has a pair in hand from here on
  size_t before = open_descriptors();
  for (uint64_t cell = 1; cell <= 50; ++cell) {
    capture->switch_to(cell);
    put(1, "x");
    if (cell % 2) capture->watch_current();
    capture->switch_to(0);
    if (cell % 3) capture->prepare();
  }
  capture->prepare();
  EXPECT_TRUE(net::run_until(loop, [&] { return open_descriptors() == before; }));
  for (uint64_t cell = 1; cell <= 50; ++cell) EXPECT_EQ(out(cell), "x");
  put(1, "the pair between cells is still there");
  EXPECT_TRUE(net::run_until(loop, [&] { return !out(0).empty(); }));
}

TEST_F(CaptureTest, goes_with_all_its_descriptors) {
  auto loop_of_its_own = std::make_unique<net::Loop>();
  net::run_turns(*loop_of_its_own);  // it opens its own descriptors when it is first used
  size_t before = open_descriptors();
  {
    Capture other(*loop_of_its_own, [](uint64_t, Stream, std::string) {});
    other.switch_to(1);
    net::run_turns(*loop_of_its_own);
    capture->switch_to(0);  // takes 1 and 2 back
  }
  net::run_turns(*loop_of_its_own);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(CaptureTest, bytes_come_once_and_in_order_when_two_threads_read) {
  capture->switch_to(1);
  capture->watch_current();
  std::thread reader([this] { loop.run(); });
  std::string expected;
  for (int number = 0; number < 20000; ++number) {
    std::string line = std::to_string(number) + "\n";
    expected += line;
    put(1, line);
    if (number % 3 == 0) capture->drain(1, Stream::out);
  }
  capture->switch_to(0);
  loop.stop();
  reader.join();
  EXPECT_TRUE(out(1) == expected);
}

}  // namespace ddip::worker
