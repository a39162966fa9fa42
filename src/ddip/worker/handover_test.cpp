#include "ddip/worker/handover.h"

#include <gtest/gtest.h>

#include <atomic>

namespace ddip::worker {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class HandoverTest : public testing::Test {
 protected:
  // Who runs a task that is posted now?
  std::thread::id runner() {
    std::atomic<bool> ran = false;
    std::thread::id id;
    loop.post([&] {
      id = std::this_thread::get_id();
      ran = true;
    });
    while (!ran) std::this_thread::yield();
    return id;
  }

  net::Loop loop;
  std::atomic<int> taken = 0;
  Handover handover{loop, [this] { ++taken; }};
};

}  // namespace

TEST_F(HandoverTest, main_thread_turns_the_loop_while_it_waits) {
  std::thread::id id;
  loop.post([&] { id = std::this_thread::get_id(); });
  handover.turn_until(Clock::now() + 10s, [&] { return id != std::thread::id(); });
  int before = taken, ours = 0;
  for (int round = 0; round < 100; ++round) {
    id = {};
    loop.post([&] { id = std::this_thread::get_id(); });
    handover.turn_until(Clock::now() + 10s, [&] { return id != std::thread::id(); });
    ours += id == std::this_thread::get_id();  // not always: who loses the core between two rounds is away
  }
  EXPECT_GT(ours, 50);
  EXPECT_LT(taken - before, 50) << "a short absence wakes nobody";
}

TEST_F(HandoverTest, second_thread_turns_it_while_the_main_thread_is_away) {
  EXPECT_NE(runner(), std::this_thread::get_id());
  EXPECT_TRUE(handover.taken());
  handover.turn_until(Clock::now(), [] { return false; });
  EXPECT_NE(runner(), std::this_thread::get_id()) << "away again";
  EXPECT_GE(taken, 2);
}

TEST_F(HandoverTest, waits_no_longer_than_it_may) {
  auto begun = Clock::now();
  handover.turn_until(begun + 20ms, [] { return false; });
  EXPECT_GE(Clock::now() - begun, 20ms);
  EXPECT_LT(Clock::now() - begun, 2s);
}

TEST_F(HandoverTest, never_both_and_nothing_is_lost_however_they_alternate) {
  std::atomic<int> inside = 0, ran = 0, posted = 0;
  std::atomic<bool> stop = false;
  std::thread poster([&] {
    while (!stop) {
      ++posted;
      loop.post([&] {
        EXPECT_EQ(++inside, 1);
        ++ran;
        --inside;
      });
      std::this_thread::sleep_for(20us);
    }
  });
  for (int round = 0; round < 300; ++round) {
    int until = ran + round % 7;
    handover.turn_until(Clock::now() + 10s, [&] { return ran >= until; });
    auto away = Clock::now() + std::chrono::microseconds(round % 5 * 700);
    while (Clock::now() < away) {
    }
  }
  stop = true;
  poster.join();
  handover.turn_until(Clock::now() + 10s, [&] { return ran == posted; });
  EXPECT_EQ(ran, posted);
}

}  // namespace ddip::worker
