// Where the ranks wait for each other. Every wait has a deadline and ends when a rank is lost. A meeting takes place
// for all ranks that live, or for none of them: who is lost in the middle of one cannot leave the others with different
// steps.
#pragma once

#include <array>
#include <atomic>
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
  // "all_reduce number 7 of …; rank 1 has not come (its last call is barrier number 5)": for `why`, from any thread.
  // Who is missing is told only while this rank waits.
  std::string describe() const;
  bool is_waiting() const { return waiting_.load(); }
  // Seconds spent waiting for each rank so far. From any thread.
  std::vector<double> waited() const;

 private:
  void come();
  void wait_for_all();
  // All have come: nobody gives this meeting up any more. Throws if somebody has.
  void settle();
  // Nobody completes this meeting any more. False if it is too late: it has taken place.
  bool give_up();
  enum class Verdict { took_place, given_up };
  // `mine`: what this rank would have, as the header has it. The first one's word is the verdict.
  Verdict decide(uint64_t mine);
  void wait_for(int peer, std::chrono::steady_clock::time_point deadline);
  [[noreturn]] void fail_for(int peer) const;
  void check_poison() const;
  [[noreturn]] void fail_for_poison() const;

  const Segment& segment_;
  const int rank_;
  Milliseconds patience_;
  const std::chrono::nanoseconds spin_;
  uint64_t sequence_ = 0;
  uint64_t stage_ = 0;
  std::atomic<bool> waiting_ = false;
  std::array<std::atomic<int64_t>, kMaxRanks> waited_ns_ = {};
};

}  // namespace ddip::comm::shm
