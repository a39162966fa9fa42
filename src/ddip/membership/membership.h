// Who is in the group, who is lost, and in which epoch: pure decisions. Nothing here reads a clock, starts a thread or
// opens a socket; the coordinator feeds events in and carries the actions out, in order.
//
//   phase:   idle ─Begin─► starting ─all joined─► running ─Stop─► stopping ─all exited─► stopped
//                              └──── one failed, or Stop ────────────┘
//   member:  absent ─Begin─► starting ─Joined─► ready ─Exited─► lost ─Replace─► starting
//                                                 └─Replace─► replacing ─Exited─┘
//
// The world size is fixed. A rank keeps its number for ever; each process that plays it is one incarnation (1, 2, ...).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace ddip::membership {

using Time = std::chrono::steady_clock::time_point;

enum class Phase { idle, starting, running, stopping, stopped };

enum class Status {
  absent,     // nothing runs for us: before Begin, or ended by Stop or a failed start
  starting,   // spawned, has not joined
  ready,      // joined
  replacing,  // killed; its successor is spawned when its exit is seen
  lost,       // gone, or given up; stays so until Replace
};

struct Member {
  Status status = Status::absent;
  bool alive = false;  // spawned, exit not seen; alive but neither starting nor ready means killed and not yet gone
  uint32_t incarnation = 0;
  int pid = 0;      // known once it has joined
  Time since{};     // when the status was entered
  std::string why;  // for lost: how it ended

  bool operator==(const Member&) const = default;
};

struct State {
  Phase phase = Phase::idle;
  uint32_t epoch = 0;  // 1 from Begin; +1 in every decision that makes existing process groups invalid
  std::vector<Member> members;

  bool operator==(const State&) const = default;
};

struct Options {
  std::chrono::milliseconds start_timeout{60'000};  // for each step: the old process's exit, the new one's join
};

// Requests. Each is answered exactly once: Begin by AnnounceReady or AnnounceStartFailed, Replace by one of those for
// each of its ranks, Stop by AnnounceStopped (two Stops share it), or by Refuse, which changes nothing.
struct Begin {};
struct Replace {  // kill these ranks where they live and start them anew; one already being replaced is left to it
  std::vector<int> ranks;
};
struct Stop {};

// Reports, in any order, late or twice. A process that could not be spawned is reported as Exited.
struct Joined {
  int rank;
  uint32_t incarnation;
  int pid;
};
struct Exited {
  int rank;
  uint32_t incarnation;
  std::string why;
};
struct Tick {};  // send one at next_deadline(); more do no harm

using Event = std::variant<Begin, Replace, Stop, Joined, Exited, Tick>;

struct Spawn {
  int rank;
  uint32_t incarnation;
  uint32_t epoch;
  bool operator==(const Spawn&) const = default;
};
struct Kill {  // once per incarnation; one that is already gone is no error
  int rank;
  uint32_t incarnation;
  bool operator==(const Kill&) const = default;
};
struct AnnounceReady {  // all ranks at the end of the start, later each replacement; tell all workers the epoch
  uint32_t epoch;
  std::vector<int> ranks;
  bool operator==(const AnnounceReady&) const = default;
};
struct AnnounceLost {  // a rank that had been announced ready is gone, once per incarnation; not repeated for Stop
  int rank;
  uint32_t incarnation;
  std::string why;
  bool operator==(const AnnounceLost&) const = default;
};
struct AnnounceStartFailed {  // these ranks will not come; during the first start the whole group then stops
  std::vector<int> ranks;
  std::string why;
  bool operator==(const AnnounceStartFailed&) const = default;
};
struct AnnounceStopped {  // every process has exited; the last action of a group, also after a failed first start
  bool operator==(const AnnounceStopped&) const = default;
};
struct Refuse {
  std::string why;
  bool operator==(const Refuse&) const = default;
};

using Action = std::variant<Spawn, Kill, AnnounceReady, AnnounceLost, AnnounceStartFailed, AnnounceStopped, Refuse>;

struct Decision {
  State state;
  std::vector<Action> actions;
  std::string reason;  // one sentence for the log
};

// A group of `world_size` ranks before Begin. REQUIRES: world_size > 0.
State empty_group(int world_size);

// The one function that changes membership. Only Tick looks at deadlines, so a worker that joins late but before the
// Tick is in. Never throws for any event, whatever its rank or incarnation.
Decision decide(State state, const Event& event, Time now, const Options& options);

// Whether a report of this incarnation still counts. The one fence for Joined and Exited.
bool is_current(const State& state, int rank, uint32_t incarnation);

// Whether a message between workers' process groups still counts. The one place where messages of an old epoch are
// dropped. Not for Joined (the epoch may move while a worker starts) nor for a cell's output (it is the user's).
bool accepts_epoch(const State& state, uint32_t epoch);

// When to send the next Tick; a Tick at that time always decides something. None while nothing is awaited. Stopping has
// no deadline here: killed processes end, and describe() names those that have not.
std::optional<Time> next_deadline(const State& state, const Options& options);

}  // namespace ddip::membership
