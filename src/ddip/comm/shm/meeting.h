// Where the ranks wait for each other. Every wait has a deadline and ends when a rank is lost.
#pragma once

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "ddip/comm/shm/segment.h"

namespace ddip::comm::shm {

class Meeting {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Meeting(const Segment& segment, int rank, Milliseconds patience);

  // First meeting of an operation: waits until all ranks have come to it. Throws ConfigError when another rank does
  // something else, naming both; TimedOut, naming who did not come; PeerLost.
  void begin(Operation operation);

  // A further meeting of the same operation.
  void again();

  void set_patience(Milliseconds patience) { patience_ = patience; }
  uint64_t sequence() const { return sequence_; }
  // "waits in all_reduce number 7 … for rank 1, which is in barrier number 5": for `why`.
  std::string describe() const;
  // Seconds spent waiting for each rank so far. From any thread.
  std::vector<double> waited() const;

 private:
  void come();
  void wait_for_all();
  void wait_for(int peer, std::chrono::steady_clock::time_point deadline);
  [[noreturn]] void fail_for(int peer) const;
  void check_poison() const;

  const Segment& segment_;
  const int rank_;
  Milliseconds patience_;
  const std::chrono::nanoseconds spin_;
  uint64_t sequence_ = 0;
  uint32_t stage_ = 0;
  std::array<std::atomic<int64_t>, kMaxRanks> waited_ns_ = {};
};

}  // namespace ddip::comm::shm
