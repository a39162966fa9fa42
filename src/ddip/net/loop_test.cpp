#include "ddip/net/loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ddip/base/fd.h"
#include "ddip/net/local_socket.h"
#include "ddip/testing/run_until.h"

namespace ddip::net {
namespace {

using namespace std::chrono_literals;

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) std::abort();
  return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

TEST(Loop, timers_come_in_the_order_of_their_deadlines) {
  Loop loop;
  std::vector<int> order;
  std::vector<Loop::Handle> handles;
  for (int delay : {30, 10, 20, 0})
    handles.push_back(loop.after(std::chrono::milliseconds(delay), [&order, delay] { order.push_back(delay); }));
  EXPECT_TRUE(run_until(loop, [&] { return order.size() == 4; }));
  EXPECT_EQ(order, (std::vector{0, 10, 20, 30}));
}

TEST(Loop, dropped_handle_means_no_call) {
  Loop loop;
  bool called = false;
  {
    Loop::Handle dropped = loop.after(0ms, [&] { called = true; });
  }
  Loop::Handle replaced = loop.after(0ms, [&] { called = true; });
  replaced = Loop::Handle();
  Loop::Handle cancelled = loop.after(0ms, [&] { called = true; });
  cancelled.cancel();
  cancelled.cancel();
  EXPECT_FALSE(cancelled);
  run_turns(loop);
  EXPECT_FALSE(called);
}

TEST(Loop, timer_that_is_due_but_cancelled_by_an_earlier_one_stays_silent) {
  Loop loop;
  bool called = false;
  Loop::Handle second;
  Loop::Handle first = loop.after(0ms, [&] { second.cancel(); });
  second = loop.after(0ms, [&] { called = true; });
  std::this_thread::sleep_for(2ms);  // both are due when the loop begins
  run_turns(loop);
  EXPECT_FALSE(called);
}

TEST(Loop, handle_destroyed_inside_its_own_task_leaves_the_captures_alive_until_it_returns) {
  Loop loop;
  auto handle = std::make_unique<Loop::Handle>();
  auto witness = std::make_shared<int>(7);
  std::weak_ptr<int> alive = witness;
  int seen = 0;
  *handle = loop.after(0ms, [&handle, &seen, witness = std::move(witness)] {
    handle.reset();
    seen = *witness;
  });
  EXPECT_TRUE(run_until(loop, [&] { return seen == 7; }));
  run_turns(loop);
  EXPECT_TRUE(alive.expired());
}

TEST(Loop, watch_destroyed_inside_its_own_task_is_called_no_more) {
  Loop loop;
  auto [read_end, write_end] = make_pipe();
  ASSERT_EQ(::write(write_end.get(), "x", 1), 1);
  auto handle = std::make_unique<Loop::Handle>();
  int calls = 0;
  *handle = loop.when_readable(read_end.get(), [&handle, &calls, witness = std::string(100, 'w')] {
    handle.reset();
    calls += witness.size() == 100 ? 1 : 1000;
  });
  EXPECT_TRUE(run_until(loop, [&] { return calls > 0; }));
  run_turns(loop);
  EXPECT_EQ(calls, 1);
}

TEST(Loop, timer_may_set_itself_anew_in_its_own_handle) {
  Loop loop;
  Loop::Handle handle;
  int count = 0;
  std::function<void()> again = [&] {
    if (++count < 100) handle = loop.after(0ms, again);
  };
  handle = loop.after(0ms, again);
  EXPECT_TRUE(run_until(loop, [&] { return count == 100; }));
}

TEST(Loop, readable_is_said_again_while_bytes_are_left) {
  Loop loop;
  auto [read_end, write_end] = make_pipe();
  ASSERT_EQ(::write(write_end.get(), "abc", 3), 3);
  std::string got;
  Loop::Handle watch = loop.when_readable(read_end.get(), [&, fd = read_end.get()] {
    char byte;
    if (::read(fd, &byte, 1) == 1) got.push_back(byte);
  });
  EXPECT_TRUE(run_until(loop, [&] { return got == "abc"; }));
  ASSERT_EQ(::write(write_end.get(), "d", 1), 1);
  EXPECT_TRUE(run_until(loop, [&] { return got == "abcd"; }));
}

TEST(Loop, writable_comes_when_there_is_room) {
  Loop loop;
  auto [read_end, write_end] = make_pipe();
  std::string block(4096, 'x');
  while (::write(write_end.get(), block.data(), block.size()) > 0) {
  }
  int calls = 0;
  Loop::Handle watch = loop.when_writable(write_end.get(), [&] { ++calls; });
  run_turns(loop);
  EXPECT_EQ(calls, 0);
  while (::read(read_end.get(), block.data(), block.size()) > 0) {
  }
  EXPECT_TRUE(run_until(loop, [&] { return calls > 0; }));
}

TEST(Loop, closing_the_watched_descriptor_is_safe) {
  Loop loop;
  auto [read_end, write_end] = make_pipe();
  int calls = 0;
  Loop::Handle watch = loop.when_readable(read_end.get(), [&] {
    ++calls;
    watch.cancel();
  });
  read_end.reset();
  ASSERT_EQ(::write(write_end.get(), "x", 1), 1);  // the loop's duplicate still reads
  EXPECT_TRUE(run_until(loop, [&] { return calls == 1; }));
}

TEST(Loop, one_descriptor_may_be_watched_in_both_directions) {
  Loop loop;
  auto [ours, theirs] = socket_pair();
  int readable = 0, writable = 0;
  Loop::Handle read = loop.when_readable(ours.get(), [&] {
    ++readable;
    read.cancel();
  });
  Loop::Handle write = loop.when_writable(ours.get(), [&] {
    ++writable;
    write.cancel();
  });
  EXPECT_TRUE(run_until(loop, [&] { return writable == 1; }));
  EXPECT_EQ(readable, 0);
  ASSERT_EQ(::write(theirs.get(), "x", 1), 1);
  EXPECT_TRUE(run_until(loop, [&] { return readable == 1; }));
}

TEST(Loop, posts_of_other_threads_all_arrive_each_thread_in_order) {
  Loop loop;
  constexpr int kThreads = 4, kPosts = 5000;
  std::vector<int> next(kThreads, 0);
  int total = 0;
  bool in_order = true;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int number = 0; number < kPosts; ++number) {
        loop.post([&, thread, number] {
          in_order &= next[static_cast<size_t>(thread)]++ == number;
          ++total;
        });
      }
    });
  }
  EXPECT_TRUE(run_until(loop, [&] { return total == kThreads * kPosts; }));
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(in_order);
}

TEST(Loop, stop_from_another_thread_ends_run_and_run_may_begin_again) {
  Loop loop;
  std::thread stopper([&] { loop.stop(); });
  stopper.join();
  bool ran = false;
  loop.post([&] {
    ran = true;
    loop.stop();
  });
  loop.run();
  EXPECT_TRUE(ran);
}

TEST(Loop, what_a_task_throws_leaves_run) {
  Loop loop;
  loop.post([] { throw std::runtime_error("task failed"); });
  EXPECT_THROW(loop.run(), std::runtime_error);
}

TEST(Loop, dies_quietly_with_timers_and_watches_pending) {
  auto loop = std::make_unique<Loop>();
  auto [read_end, write_end] = make_pipe();
  auto witness = std::make_shared<int>(1);
  std::weak_ptr<int> alive = witness;
  {
    Loop::Handle timer = loop->after(1h, [witness] {});
    Loop::Handle watch = loop->when_readable(read_end.get(), [witness] {});
    witness.reset();
  }
  loop.reset();
  EXPECT_TRUE(alive.expired());
}

}  // namespace ddip::net
