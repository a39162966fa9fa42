// For tests: turns a loop on the calling thread until something has happened.
#pragma once

#include <chrono>
#include <functional>

#include "ddip/net/loop.h"

namespace ddip::net {

// False: it had not happened when the patience was over.
inline bool run_until(Loop& loop, const std::function<bool()>& happened,
                      std::chrono::milliseconds patience = std::chrono::seconds(10)) {
  auto deadline = std::chrono::steady_clock::now() + patience;
  bool done = false;
  Loop::Handle tick;
  std::function<void()> look = [&] {
    done = happened();
    if (done || std::chrono::steady_clock::now() > deadline) return loop.stop();
    tick = loop.after(std::chrono::milliseconds(1), look);
  };
  loop.post(look);
  loop.run();
  return done;
}

// So that what was posted, and what that posted in turn, has run.
inline void run_turns(Loop& loop, int turns = 5) {
  run_until(loop, [&] { return turns-- == 0; });
}

}  // namespace ddip::net
