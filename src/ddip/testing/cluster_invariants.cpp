#include "ddip/testing/cluster_invariants.h"

#include <algorithm>

namespace ddip::testing {

using namespace membership;

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw Violation{what};
}

bool contains_refusal(const std::vector<Action>& actions) {
  return std::ranges::any_of(actions, [](const Action& action) { return std::holds_alternative<Refuse>(action); });
}

}  // namespace

Seen& Seen::operator+=(const Seen& other) {
  events += other.events;
  first_starts_failed += other.first_starts_failed;
  losses += other.losses;
  replacements_ready += other.replacements_ready;
  replacements_failed += other.replacements_failed;
  refusals += other.refusals;
  stale_reports += other.stale_reports;
  stale_messages += other.stale_messages;
  return *this;
}

void ClusterInvariants::before_decision(const State& state, const Event& event) {
  state_before_stale_.reset();
  if (stale(event)) state_before_stale_ = state;
}

void ClusterInvariants::after_decision(const Event& event, const Decision& decision) {
  ++seen_.events;
  require(!decision.reason.empty(), "a decision without a reason");
  if (state_before_stale_) {
    ++seen_.stale_reports;
    require(decision.actions.empty() && decision.state == *state_before_stale_,
            "a report of an old incarnation was acted upon");
  }
  const bool refused = contains_refusal(decision.actions);
  require(!refused || decision.actions.size() == 1, "a refusal that does something");
  require(!stopped_ || refused || decision.actions.empty(), "an action after AnnounceStopped");
  membership_changed_ = std::holds_alternative<Begin>(event) && !refused;
  note(event, refused);
  for (const Action& action : decision.actions) std::visit([this](const auto& a) { check(a); }, action);

  const uint32_t expected = epoch_ + (membership_changed_ ? 1 : 0);
  require(decision.state.epoch >= epoch_, "the epoch went back");
  require(decision.state.epoch == expected, "the epoch must move by one with a change of membership, and only then");
  for (const Action& action : decision.actions) {
    const auto* spawn = std::get_if<Spawn>(&action);
    const auto* ready = std::get_if<AnnounceReady>(&action);
    require(!spawn || spawn->epoch == expected, "a worker was spawned into another epoch");
    require(!ready || ready->epoch == expected, "readiness was announced for another epoch");
  }
  epoch_ = expected;
  if (membership_changed_) ++memberships_;
}

void ClusterInvariants::process_started(int rank, uint32_t incarnation) {
  require(at(rank).live == 0, "two live processes of one rank");
  at(rank).live = incarnation;
}

void ClusterInvariants::process_ended(int rank) { at(rank).live = 0; }

void ClusterInvariants::message_delivered(int sent_in, bool accepted) {
  const bool current = sent_in == memberships_;
  if (!current) ++seen_.stale_messages;
  require(current || !accepted, "a message of an old membership was accepted");
  require(!current || accepted, "a message of the current membership was dropped");
}

void ClusterInvariants::settled(const State& state) const {
  require(!first_start_, "the first start was never answered");
  require(std::ranges::none_of(ranks_, &Rank::owed), "a request was never answered");
  require(ending_ == stopped_, ending_ ? "the group was to end but never stopped" : "stopped without being asked to");
  require(state.phase == (ending_ ? Phase::stopped : Phase::running), "the phase does not tell what happened");
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Status expected = ending_ ? Status::absent : ranks_[i].ready != 0 ? Status::ready : Status::lost;
    require(state.members[i].status == expected, "the status of a rank is not what was announced");
    require(ranks_[i].live == (ending_ ? 0 : ranks_[i].ready), "what runs is not what was announced");
  }
}

std::vector<int> ClusterInvariants::ranks_not_ready() const {
  std::vector<int> ranks;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].ready == 0) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

ClusterInvariants::Rank& ClusterInvariants::at(int rank) {
  require(rank >= 0 && static_cast<size_t>(rank) < ranks_.size(), "an action for a rank that does not exist");
  return ranks_[static_cast<size_t>(rank)];
}

bool ClusterInvariants::stale(const Event& event) {
  const auto is_old = [](const Rank& rank, uint32_t incarnation) {
    return incarnation != rank.spawned || incarnation == rank.exit_seen;
  };
  if (const auto* joined = std::get_if<Joined>(&event)) return is_old(at(joined->rank), joined->incarnation);
  if (const auto* exited = std::get_if<Exited>(&event)) return is_old(at(exited->rank), exited->incarnation);
  return false;
}

void ClusterInvariants::note(const Event& event, bool refused) {
  if (const auto* joined = std::get_if<Joined>(&event)) {
    at(joined->rank).join_seen = std::max(at(joined->rank).join_seen, joined->incarnation);
  } else if (const auto* exited = std::get_if<Exited>(&event)) {
    at(exited->rank).exit_seen = std::max(at(exited->rank).exit_seen, exited->incarnation);
  } else if (std::holds_alternative<Stop>(event)) {
    ending_ = true;
  } else if (std::holds_alternative<Begin>(event) && !refused) {
    first_start_ = true;
    for (Rank& rank : ranks_) rank.owed = true;
  } else if (const auto* replace = std::get_if<Replace>(&event); replace && !refused) {
    for (int rank : replace->ranks) at(rank).owed = true;
  }
}

void ClusterInvariants::check(const Spawn& spawn) {
  Rank& rank = at(spawn.rank);
  require(spawn.incarnation == rank.spawned + 1, "an incarnation that is not the next one");
  require(!ending_, "a worker was spawned into a group that ends");
  rank.spawned = spawn.incarnation;
}

void ClusterInvariants::check(const Kill& kill) {
  Rank& rank = at(kill.rank);
  require(kill.incarnation == rank.spawned, "an old incarnation was killed");
  require(kill.incarnation != rank.killed, "an incarnation was killed twice");
  rank.killed = kill.incarnation;
}

void ClusterInvariants::check(const AnnounceReady& ready) {
  require(!ready.ranks.empty(), "readiness of nobody was announced");
  require(!first_start_ || ready.ranks.size() == ranks_.size(), "the first start succeeded without all ranks");
  for (int r : ready.ranks) {
    Rank& rank = at(r);
    require(rank.owed, "readiness was announced twice, or to nobody");
    require(rank.ready == 0, "ready while its predecessor was not announced lost");
    require(rank.join_seen == rank.spawned && rank.exit_seen != rank.spawned, "announced ready, but it has not joined");
    rank.owed = false;
    rank.ready = rank.spawned;
  }
  // The first start gives the epoch of Begin its members; later ones change them.
  if (!first_start_) {
    membership_changed_ = true;
    ++seen_.replacements_ready;
  }
  first_start_ = false;
}

void ClusterInvariants::check(const AnnounceLost& lost) {
  Rank& rank = at(lost.rank);
  require(rank.ready != 0 && rank.ready == lost.incarnation, "lost twice, or without having been ready");
  rank.ready = 0;
  membership_changed_ = true;
  ++seen_.losses;
}

void ClusterInvariants::check(const AnnounceStartFailed& failed) {
  require(!failed.ranks.empty() && !failed.why.empty(), "a failed start that names nobody or no cause");
  for (int rank : failed.ranks) {
    require(at(rank).owed, "a failed start was announced twice, or to nobody");
    at(rank).owed = false;
  }
  ++(first_start_ ? seen_.first_starts_failed : seen_.replacements_failed);
  if (!first_start_) return;
  first_start_ = false;
  ending_ = true;
  for (Rank& rank : ranks_) rank.owed = false;
}

void ClusterInvariants::check(const AnnounceStopped&) {
  require(!stopped_, "stopped twice");
  require(ending_, "stopped without being asked to");
  const auto ended = [](const Rank& rank) { return rank.live == 0 && rank.exit_seen == rank.spawned; };
  require(std::ranges::all_of(ranks_, ended), "stopped while a process lives");
  stopped_ = true;
  // Nobody announces losses one by one when the whole group ends.
  for (Rank& rank : ranks_) rank.ready = 0;
}

void ClusterInvariants::check(const Refuse& refuse) {
  require(!refuse.why.empty(), "a refusal without a cause");
  ++seen_.refusals;
}

}  // namespace ddip::testing
