// The decisions inside a simulated cluster: the real ones keep every invariant; each planted bug is noticed.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "ddip/membership/membership.h"
#include "ddip/testing/cluster_simulator.h"

namespace ddip::membership {
namespace {

using ddip::testing::Rules;
using ddip::testing::Seen;
using ddip::testing::simulate;
using ddip::testing::SimulationResult;
using ddip::testing::Trace;

constexpr uint64_t kHistories = 100'000;
constexpr uint64_t kSeedsToCatchAMutant = 200;

TEST(Simulator, every_invariant_holds_in_a_hundred_thousand_histories) {
  Seen seen;
  for (uint64_t seed = 0; seed < kHistories; ++seed) {
    const SimulationResult result = simulate(seed);
    ASSERT_EQ(result.violation, "") << "seed " << seed << "\n" << simulate(seed, {}, Trace::on).trace;
    seen += result.seen;
  }
  // A simulator in which nothing happens proves nothing.
  const auto often = static_cast<int64_t>(kHistories / 20);
  EXPECT_GT(seen.first_starts_failed, often);
  EXPECT_GT(seen.losses, often);
  EXPECT_GT(seen.replacements_ready, often);
  EXPECT_GT(seen.replacements_failed, often);
  EXPECT_GT(seen.refusals, often);
  EXPECT_GT(seen.stale_reports, often);
  EXPECT_GT(seen.stale_messages, often);
}

RC_GTEST_PROP(SimulatorProperty, every_invariant_holds_for_any_seed, ()) {
  const SimulationResult result = simulate(*rc::gen::arbitrary<uint64_t>());
  RC_ASSERT(result.violation == "");
}

TEST(Simulator, one_seed_is_one_history) {
  const std::string trace = simulate(7, {}, Trace::on).trace;
  EXPECT_NE(trace, "");
  EXPECT_EQ(trace, simulate(7, {}, Trace::on).trace);
  EXPECT_NE(trace, simulate(8, {}, Trace::on).trace);
}

// The planted bugs: each is decide() with one thing wrong.

template <typename Kind>
void erase(std::vector<Action>& actions) {
  std::erase_if(actions, [](const Action& action) { return std::holds_alternative<Kind>(action); });
}

template <typename Kind>
void repeat(std::vector<Action>& actions) {
  const std::vector<Action> once = actions;
  std::ranges::copy_if(once, std::back_inserter(actions),
                       [](const Action& action) { return std::holds_alternative<Kind>(action); });
}

template <typename Kind>
Decision announces_twice(State state, const Event& event, Time now, const Options& options) {
  Decision decision = decide(std::move(state), event, now, options);
  repeat<Kind>(decision.actions);
  return decision;
}

template <typename Kind>
Decision never_announces(State state, const Event& event, Time now, const Options& options) {
  Decision decision = decide(std::move(state), event, now, options);
  erase<Kind>(decision.actions);
  return decision;
}

// Events of this kind count whatever incarnation they come from.
template <typename Report>
Decision accepts_old_incarnation(State state, const Event& event, Time now, const Options& options) {
  Event trusted = event;
  if (auto* report = std::get_if<Report>(&trusted)) {
    report->incarnation = state.members[static_cast<size_t>(report->rank)].incarnation;
  }
  return decide(std::move(state), trusted, now, options);
}

Decision spawns_before_the_old_exited(State state, const Event& event, Time now, const Options& options) {
  Decision decision = decide(std::move(state), event, now, options);
  if (!std::holds_alternative<Replace>(event)) return decision;
  const std::vector<Action> actions = decision.actions;
  for (const Action& action : actions) {
    const auto* kill = std::get_if<Kill>(&action);
    if (!kill) continue;
    Member& member = decision.state.members[static_cast<size_t>(kill->rank)];
    member.status = Status::starting;
    decision.actions.push_back(Spawn{kill->rank, ++member.incarnation, decision.state.epoch});
  }
  return decision;
}

template <typename Cause>
Decision forgets_the_epoch(State state, const Event& event, Time now, const Options& options) {
  const uint32_t before = state.epoch;
  Decision decision = decide(std::move(state), event, now, options);
  if (std::holds_alternative<Cause>(event)) decision.state.epoch = before;
  for (Action& action : decision.actions) {
    if (auto* ready = std::get_if<AnnounceReady>(&action)) ready->epoch = decision.state.epoch;
    if (auto* spawn = std::get_if<Spawn>(&action)) spawn->epoch = decision.state.epoch;
  }
  return decision;
}

Decision skips_the_deadline(State state, const Event& event, Time now, const Options& options) {
  if (std::holds_alternative<Tick>(event)) return {std::move(state), {}, "no hurry"};
  return decide(std::move(state), event, now, options);
}

Decision gives_up_without_killing(State state, const Event& event, Time now, const Options& options) {
  Decision decision = decide(std::move(state), event, now, options);
  if (std::holds_alternative<Tick>(event)) erase<Kill>(decision.actions);
  return decision;
}

Decision stops_before_all_exited(State state, const Event& event, Time now, const Options& options) {
  Decision decision = decide(std::move(state), event, now, options);
  if (decision.state.phase == Phase::stopping) {
    decision.state.phase = Phase::stopped;
    for (Member& member : decision.state.members) member.alive = false;
    decision.actions.push_back(AnnounceStopped{});
  }
  return decision;
}

Decision replaces_a_rank_under_way_again(State state, const Event& event, Time now, const Options& options) {
  if (const auto* replace = std::get_if<Replace>(&event)) {
    for (int rank : replace->ranks) {
      if (rank >= static_cast<int>(state.members.size())) continue;
      Member& member = state.members[static_cast<size_t>(rank)];
      if (member.status == Status::replacing) member.status = Status::ready;
    }
  }
  return decide(std::move(state), event, now, options);
}

struct Mutant {
  const char* name;
  Rules rules;
};

class MutationGate : public ::testing::TestWithParam<Mutant> {};

TEST_P(MutationGate, planted_bug_is_caught) {
  for (uint64_t seed = 0; seed < kSeedsToCatchAMutant; ++seed) {
    const SimulationResult result = simulate(seed, GetParam().rules);
    if (result.violation.empty()) continue;
    RecordProperty("caught_by_seed", static_cast<int>(seed));
    RecordProperty("violation", result.violation);
    return;
  }
  FAIL() << "no violation in " << kSeedsToCatchAMutant << " seeds";
}

INSTANTIATE_TEST_SUITE_P(
    , MutationGate,
    ::testing::Values(Mutant{"spawns_before_the_old_exited", {.decide = spawns_before_the_old_exited}},
                      Mutant{"accepts_exit_of_old_incarnation", {.decide = accepts_old_incarnation<Exited>}},
                      Mutant{"accepts_join_of_old_incarnation", {.decide = accepts_old_incarnation<Joined>}},
                      Mutant{"accepts_any_epoch", {.accepts_epoch = [](const State&, uint32_t) { return true; }}},
                      Mutant{"forgets_the_epoch_of_a_loss", {.decide = forgets_the_epoch<Exited>}},
                      Mutant{"forgets_the_epoch_of_a_join", {.decide = forgets_the_epoch<Joined>}},
                      Mutant{"forgets_the_epoch_of_a_replacement", {.decide = forgets_the_epoch<Replace>}},
                      Mutant{"announces_ready_twice", {.decide = announces_twice<AnnounceReady>}},
                      Mutant{"announces_lost_twice", {.decide = announces_twice<AnnounceLost>}},
                      Mutant{"announces_start_failed_twice", {.decide = announces_twice<AnnounceStartFailed>}},
                      Mutant{"announces_stopped_twice", {.decide = announces_twice<AnnounceStopped>}},
                      Mutant{"never_announces_ready", {.decide = never_announces<AnnounceReady>}},
                      Mutant{"never_announces_lost", {.decide = never_announces<AnnounceLost>}},
                      Mutant{"never_announces_start_failed", {.decide = never_announces<AnnounceStartFailed>}},
                      Mutant{"never_announces_stopped", {.decide = never_announces<AnnounceStopped>}},
                      Mutant{"skips_the_deadline", {.decide = skips_the_deadline}},
                      Mutant{"gives_up_without_killing", {.decide = gives_up_without_killing}},
                      Mutant{"stops_before_all_exited", {.decide = stops_before_all_exited}},
                      Mutant{"replaces_a_rank_under_way_again", {.decide = replaces_a_rank_under_way_again}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ddip::membership
