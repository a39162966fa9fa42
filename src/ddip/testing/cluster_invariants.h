// What the rest of ddip relies on from membership, checked from books of our own: events in, actions out and the true
// life of the processes, never from the status that State keeps. Used by the cluster simulator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddip/membership/membership.h"

namespace ddip::testing {

// Thrown at the first broken invariant.
struct Violation {
  std::string what;
};

// How often the interesting things happened, so that a test can assert that they did.
struct Seen {
  int64_t events = 0;
  int64_t first_starts_failed = 0;
  int64_t losses = 0;
  int64_t replacements_ready = 0;
  int64_t replacements_failed = 0;
  int64_t refusals = 0;
  int64_t stale_reports = 0;
  int64_t stale_messages = 0;

  Seen& operator+=(const Seen& other);
};

class ClusterInvariants {
 public:
  explicit ClusterInvariants(int world_size) : ranks_(static_cast<size_t>(world_size)) {}

  // Around every decision.
  void before_decision(const membership::State& state, const membership::Event& event);
  void after_decision(const membership::Event& event, const membership::Decision& decision);

  // As they truly happen.
  void process_started(int rank, uint32_t incarnation);
  void process_ended(int rank);

  // A message was sent when memberships() was `sent_in`, and has been delivered now.
  void message_delivered(int sent_in, bool accepted);

  // Nothing is under way any more and no fault has happened for long.
  void settled(const membership::State& state) const;

  int memberships() const { return memberships_; }  // how many there have been: what the epoch must stand for
  bool ending() const { return ending_; }
  std::vector<int> ranks_not_ready() const;
  const Seen& seen() const { return seen_; }

 private:
  struct Rank {
    uint32_t spawned = 0;    // newest incarnation that was ordered
    uint32_t killed = 0;     // newest incarnation whose death was ordered
    uint32_t join_seen = 0;  // newest incarnation whose join was reported
    uint32_t exit_seen = 0;  // newest incarnation whose exit was reported
    uint32_t ready = 0;      // incarnation announced ready and not announced lost; 0 if none
    uint32_t live = 0;       // incarnation that truly runs; 0 if none
    bool owed = false;       // a request waits for this rank
  };

  Rank& at(int rank);
  bool stale(const membership::Event& event);
  void note(const membership::Event& event, bool refused);
  void check(const membership::Spawn& spawn);
  void check(const membership::Kill& kill);
  void check(const membership::AnnounceReady& ready);
  void check(const membership::AnnounceLost& lost);
  void check(const membership::AnnounceStartFailed& failed);
  void check(const membership::AnnounceStopped&);
  void check(const membership::Refuse&);

  std::vector<Rank> ranks_;
  bool first_start_ = false;  // begun and not answered
  bool ending_ = false;       // stop requested, or the first start failed
  bool stopped_ = false;
  int memberships_ = 0;
  uint32_t epoch_ = 0;
  bool membership_changed_ = false;                      // by the decision being checked
  std::optional<membership::State> state_before_stale_;  // set while a stale report is being decided
  Seen seen_;
};

}  // namespace ddip::testing
