// One loop, two threads. While the main thread waits for work it turns the loop itself, so that a task wakes nobody
// else. When it has been away for a moment, computing, a second thread turns the loop in its place.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "ddip/base/fd.h"
#include "ddip/net/loop.h"

namespace ddip::worker {

class Handover {
 public:
  // The main thread counts as away. `on_taken` runs on the second thread whenever it begins to turn the loop.
  Handover(net::Loop& loop, std::function<void()> on_taken);
  // REQUIRES: main thread. The loop is nobody's afterwards.
  ~Handover();

  // Main thread: turns the loop until `done` or the time is over, then is away again.
  void turn_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& done);

  // Whether the second thread turns the loop now.
  bool taken() const;

 private:
  void run();
  void take_back();
  void set_timer(std::chrono::nanoseconds delay);

  net::Loop& loop_;
  std::function<void()> on_taken_;
  Fd timer_;  // wakes the second thread; the main thread only sets it, which costs no switch
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool main_turns_ = false;
  bool second_turns_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace ddip::worker
