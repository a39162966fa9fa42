#include "ddip/testing/cluster_simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>
#include <vector>

namespace ddip::testing {

namespace {

using namespace membership;
using Milliseconds = std::chrono::milliseconds;

constexpr int kStartTimeoutMs = 1000;
constexpr int kFaultyMs = 10'000;  // faults and the user's requests happen before this, then all is quiet
constexpr int kMostEvents = 20'000;
constexpr Options kOptions{.start_timeout = Milliseconds(kStartTimeoutMs)};

// splitmix64: the same numbers on every platform, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  int below(int bound) { return static_cast<int>(next() % static_cast<uint64_t>(bound)); }
  bool percent(int chance) { return below(100) < chance; }

 private:
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

struct Process {
  uint32_t live = 0;          // incarnation that runs; 0 if none
  uint32_t join_dropped = 0;  // incarnation that died before its join got out
  int busy_until = 0;         // ms; orders to one rank arrive in order
};

// What happens out there, besides the events that are decided upon.
struct Order {
  Action action;  // Spawn or Kill
};
struct Death {
  int rank;
  uint32_t incarnation;
  const char* why;
};
struct Message {  // within a process group
  uint32_t epoch;
  int sent_in;
};

using What = std::variant<Event, Order, Death, Message>;

struct Happening {
  int at;     // ms
  int order;  // random, so that ties fall either way
  What what;

  bool operator<(const Happening& other) const { return std::pair(at, order) > std::pair(other.at, other.order); }
};

class Simulation {
 public:
  Simulation(uint64_t seed, const Rules& rules, Trace trace)
      : rules_(rules), trace_(trace), random_(seed), world_size_(1 + random_.below(5)), invariants_(world_size_) {
    constexpr int kFaultPercents[] = {0, 2, 6, 20};
    fault_percent_ = kFaultPercents[random_.below(4)];
    processes_.resize(static_cast<size_t>(world_size_));
    state_ = empty_group(world_size_);
  }

  SimulationResult run();

 private:
  bool fault() { return now_ < kFaultyMs && random_.percent(fault_percent_); }
  int network_delay() { return fault() ? random_.below(3 * kStartTimeoutMs) : random_.below(50); }
  Process& process(int rank) { return processes_[static_cast<size_t>(rank)]; }

  void live_and_stop();
  void plan_requests();
  void run_until_settled();
  void schedule(int delay, const What& what);
  void feed(int delay, const Event& event) { schedule(delay, event); }
  void report(const Event& event);
  void order(int rank, const Action& action);

  void happen(const Event& event);
  void happen(const Order& order) {
    std::visit([this](const auto& action) { obey(action); }, order.action);
  }
  void happen(const Death& death);
  void happen(const Message& message);
  void obey(const Spawn& spawn);
  void obey(const Kill& kill);
  void obey(const auto&) {}
  void tick_at_next_deadline();

  const Rules rules_;
  const Trace trace_;
  Random random_;
  const int world_size_;
  int fault_percent_;
  int now_ = 0;  // ms
  int next_tick_ = -1;
  std::vector<Happening> heap_;
  std::vector<Process> processes_;
  State state_;
  ClusterInvariants invariants_;
  std::string traced_;
};

SimulationResult Simulation::run() {
  std::string violation;
  try {
    live_and_stop();
  } catch (const Violation& caught) {
    violation = fmt::format("at {} ms: {}", now_, caught.what);
  }
  return {violation, traced_, invariants_.seen()};
}

void Simulation::live_and_stop() {
  plan_requests();
  run_until_settled();
  now_ = std::max(now_, kFaultyMs);
  if (const std::vector<int> lost = invariants_.ranks_not_ready(); !invariants_.ending() && !lost.empty()) {
    feed(0, Replace{lost});
    run_until_settled();
    if (!invariants_.ranks_not_ready().empty()) throw Violation{"a replacement without any fault failed"};
  }
  feed(0, Stop{});
  run_until_settled();
}

void Simulation::plan_requests() {
  feed(random_.below(10), Begin{});
  for (int left = random_.below(12); left > 0; --left) {
    Replace replace;
    for (int more = 1 + random_.below(3); more > 0; --more) replace.ranks.push_back(random_.below(world_size_));
    if (random_.percent(3)) replace.ranks.push_back(world_size_);
    feed(random_.below(kFaultyMs), replace);
  }
  if (random_.percent(5)) feed(random_.below(kFaultyMs), Begin{});
  if (random_.percent(25)) feed(random_.below(kFaultyMs), Stop{});
  if (random_.percent(5)) feed(random_.below(kFaultyMs), Stop{});
}

void Simulation::run_until_settled() {
  for (int events = 0; !heap_.empty(); ++events) {
    if (events > kMostEvents) throw Violation{"it never settles"};
    std::pop_heap(heap_.begin(), heap_.end());
    const Happening next = std::move(heap_.back());
    heap_.pop_back();
    now_ = std::max(now_, next.at);
    std::visit([this](const auto& what) { happen(what); }, next.what);
  }
  invariants_.settled(state_);
}

void Simulation::schedule(int delay, const What& what) {
  heap_.push_back({now_ + delay, random_.below(1 << 30), what});
  std::push_heap(heap_.begin(), heap_.end());
}

void Simulation::report(const Event& event) {
  feed(network_delay(), event);
  if (fault()) feed(network_delay(), event);
}

void Simulation::order(int rank, const Action& action) {
  int& busy_until = process(rank).busy_until;
  busy_until = std::max(busy_until + 1, now_ + network_delay());
  schedule(busy_until - now_, Order{action});
}

void Simulation::happen(const Event& event) {
  const auto* joined = std::get_if<Joined>(&event);
  if (joined && process(joined->rank).join_dropped == joined->incarnation) return;

  const int memberships_before = invariants_.memberships();
  invariants_.before_decision(state_, event);
  Decision decision = rules_.decide(std::move(state_), event, Time(Milliseconds(now_)), kOptions);
  if (trace_ == Trace::on) traced_ += fmt::format("{:6} ms  {}\n", now_, decision.reason);
  invariants_.after_decision(event, decision);
  state_ = std::move(decision.state);

  for (const Action& action : decision.actions) {
    if (const auto* spawn = std::get_if<Spawn>(&action)) order(spawn->rank, action);
    if (const auto* kill = std::get_if<Kill>(&action)) order(kill->rank, action);
  }
  if (invariants_.memberships() != memberships_before) {
    schedule(network_delay() + network_delay(), Message{state_.epoch, invariants_.memberships()});
  }
  tick_at_next_deadline();
  const bool still_due = std::holds_alternative<Tick>(event) && next_tick_ == now_;
  if (still_due) throw Violation{"a tick at its deadline decided nothing"};
}

void Simulation::happen(const Death& death) {
  Process& dying = process(death.rank);
  if (dying.live != death.incarnation) return;
  dying.live = 0;
  invariants_.process_ended(death.rank);
  if (random_.percent(50)) dying.join_dropped = death.incarnation;
  report(Exited{death.rank, death.incarnation, death.why});
}

void Simulation::happen(const Message& message) {
  invariants_.message_delivered(message.sent_in, rules_.accepts_epoch(state_, message.epoch));
}

void Simulation::obey(const Spawn& spawn) {
  process(spawn.rank).live = spawn.incarnation;
  invariants_.process_started(spawn.rank, spawn.incarnation);
  if (fault()) return schedule(random_.below(500), Death{spawn.rank, spawn.incarnation, "died at start"});
  if (fault()) return;  // hangs until it is killed
  // If it dies before, this is a join that was sent just before its death.
  const int start = fault() ? random_.below(2 * kStartTimeoutMs) : random_.below(500);
  feed(start, Joined{spawn.rank, spawn.incarnation, 1000 + spawn.rank});
  if (fault()) feed(start + random_.below(2000), Joined{spawn.rank, spawn.incarnation, 1000 + spawn.rank});
  const int death = start + random_.below(kFaultyMs);
  if (fault() && now_ + death < kFaultyMs) schedule(death, Death{spawn.rank, spawn.incarnation, "died at work"});
}

void Simulation::obey(const Kill& kill) {
  const int delay = fault() ? random_.below(3 * kStartTimeoutMs) : random_.below(100);
  schedule(delay, Death{kill.rank, kill.incarnation, "killed"});
}

void Simulation::tick_at_next_deadline() {
  const std::optional<Time> deadline = next_deadline(state_, kOptions);
  const int at = deadline ? static_cast<int>((*deadline - Time()) / Milliseconds(1)) : -1;
  if (at == std::exchange(next_tick_, at) || !deadline) return;
  feed(std::max(0, at - now_), Tick{});
}

}  // namespace

SimulationResult simulate(uint64_t seed, const Rules& rules, Trace trace) {
  return Simulation(seed, rules, trace).run();
}

}  // namespace ddip::testing
