#include "ddip/comm/shm/meeting.h"

#include <fmt/format.h>

#include "ddip/base/cores.h"
#include "ddip/base/error.h"
#include "ddip/base/futex.h"

namespace ddip::comm::shm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A wake-up costs 0.1 to 0.2 ms, so a short look first; but never where ranks share cores, where it only takes the time
// that the other one needs.
constexpr auto kSpin = 50us;
// A poison that is written between our look and our sleep wakes nobody: the next look finds it.
constexpr auto kLookAgain = 20ms;

std::chrono::nanoseconds spin_for(int world) { return usable_cores() >= world ? std::chrono::nanoseconds(kSpin) : 0ns; }

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

bool reached(uint32_t stage, uint64_t wanted) {
  return static_cast<int32_t>(stage - static_cast<uint32_t>(wanted)) >= 0;
}

}  // namespace

Meeting::Meeting(const Segment& segment, int rank, Milliseconds patience)
    : segment_(segment), rank_(rank), patience_(patience), spin_(spin_for(segment.world())) {}

void Meeting::begin(Operation operation) {
  check_poison();
  operation.sequence = ++sequence_;
  segment_.line(rank_).operation(sequence_) = operation;
  come();
  wait_for_all();
  for (int peer = 0; peer < segment_.world(); ++peer) {
    const Operation& other = segment_.line(peer).operation(sequence_);
    if (other.agrees_with(operation)) continue;
    throw ConfigError(
        fmt::format("rank {} is in {}, but rank {} is in {}: all ranks must make the same calls in the same order",
                    rank_, shm::describe(operation), peer, shm::describe(other)));
  }
}

void Meeting::again() {
  come();
  wait_for_all();
}

void Meeting::come() {
  RankLine& line = segment_.line(rank_);
  line.stage.store(static_cast<uint32_t>(++stage_));
  if (line.sleepers.load() > 0) futex_wake_all(line.stage);
}

void Meeting::wait_for_all() {
  auto begun = Clock::now();
  auto deadline = begun + patience_;
  for (int step = 1; step < segment_.world(); ++step) {
    int peer = (rank_ + step) % segment_.world();
    if (reached(segment_.line(peer).stage.load(std::memory_order_acquire), stage_)) continue;
    waiting_ = true;
    try {
      wait_for(peer, deadline);
    } catch (...) {
      waiting_ = false;
      if (!give_up()) return;  // all have come, and somebody saw it
      throw;
    }
    waiting_ = false;
    auto now = Clock::now();
    waited_ns_[static_cast<size_t>(peer)].fetch_add(std::chrono::nanoseconds(now - begun).count(),
                                                    std::memory_order_relaxed);
    begun = now;
  }
  settle();
}

void Meeting::settle() {
  if (decide(uint64_t{stage_} * 2) == Verdict::given_up) fail_for_poison();
}

bool Meeting::give_up() { return decide(uint64_t{stage_} * 2 + 1) == Verdict::given_up; }

// Somebody may be one meeting ahead already, and have given that up: then this one took place.
Meeting::Verdict Meeting::decide(uint64_t mine) {
  std::atomic<uint64_t>& verdict = segment_.header().verdict;
  uint64_t last = verdict.load();
  const uint64_t done = mine / 2 * 2;
  while (last < done && last % 2 == 0) {
    if (verdict.compare_exchange_weak(last, mine)) last = mine;
  }
  return last < done || last == done + 1 ? Verdict::given_up : Verdict::took_place;
}

std::vector<double> Meeting::waited() const {
  std::vector<double> seconds;
  for (int rank = 0; rank < segment_.world(); ++rank)
    seconds.push_back(static_cast<double>(waited_ns_[static_cast<size_t>(rank)].load(std::memory_order_relaxed)) *
                      1e-9);
  return seconds;
}

void Meeting::wait_for(int peer, Clock::time_point deadline) {
  RankLine& line = segment_.line(peer);
  if (reached(line.stage.load(std::memory_order_acquire), stage_)) return;
  if (spin_ > 0ns) {
    auto until = Clock::now() + spin_;
    do {
      for (int round = 0; round < 64; ++round) {
        if (reached(line.stage.load(std::memory_order_acquire), stage_)) return;
        relax();
      }
    } while (Clock::now() < until);
  }
  for (;;) {
    check_poison();
    line.sleepers.fetch_add(1);
    uint32_t stage = line.stage.load();
    bool come = reached(stage, stage_);
    if (!come && segment_.header().poison.load() == 0 && line.left.load() == 0)
      futex_wait(line.stage, stage, std::min<std::chrono::nanoseconds>(deadline - Clock::now(), kLookAgain));
    line.sleepers.fetch_sub(1);
    if (reached(line.stage.load(), stage_)) return;
    check_poison();
    if (line.left.load())
      throw PeerLost(fmt::format("rank {} waits in {} for rank {}, which has left", rank_,
                                 shm::describe(segment_.line(rank_).newest()), peer));
    if (Clock::now() >= deadline) fail_for(peer);
  }
}

void Meeting::check_poison() const {
  if (segment_.header().poison.load() != 0) fail_for_poison();
}

void Meeting::fail_for_poison() const {
  uint32_t reason = segment_.header().poison.load();
  std::string where = sequence_ == 0 ? "" : " during " + shm::describe(segment_.line(rank_).newest());
  if (reason == 0) throw PeerLost("another rank has given up" + where);
  if (reason == kAborted)
    throw PeerLost("the communicator was aborted" + where +
                   "; all ranks must make it again (a notebook: %makedip --rebuild, a program: ddip.rebuild())");
  throw PeerLost(fmt::format("rank {} is lost{}; nothing of this step was kept", reason - 1, where));
}

void Meeting::fail_for(int peer) const {
  const RankLine& line = segment_.line(peer);
  throw TimedOut(fmt::format("rank {} met its timeout of {} s in {}, waiting for rank {}, whose last call is {}", rank_,
                             static_cast<double>(patience_.count()) / 1000,
                             shm::describe(segment_.line(rank_).newest()), peer, shm::describe(line.newest())));
}

std::string Meeting::describe() const {
  std::string text = shm::describe(segment_.line(rank_).newest());
  uint32_t ours = segment_.line(rank_).stage.load();
  for (int peer = 0; peer < segment_.world(); ++peer) {
    const RankLine& line = segment_.line(peer);
    if (!reached(line.stage.load(), ours))
      text += fmt::format("; rank {} has not come (its last call is {})", peer, shm::describe(line.newest()));
  }
  return text;
}

}  // namespace ddip::comm::shm
