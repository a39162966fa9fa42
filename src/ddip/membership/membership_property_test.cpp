// Properties of decide() under any sequence of events, also ones no cluster would produce.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "ddip/membership/describe.h"
#include "ddip/membership/membership.h"

namespace ddip::membership {
namespace {

constexpr int kWorldSize = 3;
constexpr Options kOptions{.start_timeout = std::chrono::milliseconds(100)};

rc::Gen<Event> any_event() {
  // Stop is rare, or most walks would end in a stopped group.
  const auto rank = rc::gen::inRange(-1, kWorldSize + 1);
  const auto incarnation = rc::gen::inRange<uint32_t>(0, 4);
  return rc::gen::weightedOneOf<Event>({
      {2, rc::gen::just(Event(Begin{}))},
      {20, rc::gen::map(rc::gen::container<std::vector<int>>(rank), [](auto ranks) { return Event(Replace{ranks}); })},
      {1, rc::gen::just(Event(Stop{}))},
      {60, rc::gen::apply([](int r, uint32_t i) { return Event(Joined{r, i, 100}); }, rank, incarnation)},
      {30, rc::gen::apply([](int r, uint32_t i) { return Event(Exited{r, i, "x"}); }, rank, incarnation)},
      {10, rc::gen::just(Event(Tick{}))},
  });
}

struct Walk {
  State state = empty_group(kWorldSize);
  Time now{};

  Decision step(const Event& event) {
    now += std::chrono::milliseconds(*rc::gen::inRange(0, 60));
    Decision decision = decide(state, event, now, kOptions);
    state = decision.state;
    return decision;
  }
};

// A state that some sequence of events leads to. Most walks begin, and most of those get everybody in.
Walk any_walk() {
  Walk walk;
  if (*rc::gen::weightedElement<bool>({{9, true}, {1, false}})) {
    walk.step(Begin{});
    for (int rank = 0; rank < kWorldSize; ++rank) walk.step(Joined{rank, 1, 100 + rank});
  }
  for (const Event& event : *rc::gen::container<std::vector<Event>>(any_event())) walk.step(event);
  return walk;
}

RC_GTEST_PROP(MembershipProperty, epoch_never_goes_back_and_moves_by_at_most_one, ()) {
  Walk walk = any_walk();
  const uint32_t before = walk.state.epoch;
  const Decision decision = walk.step(*any_event());
  RC_ASSERT(decision.state.epoch >= before);
  RC_ASSERT(decision.state.epoch <= before + 1);
  RC_ASSERT(!decision.reason.empty());
  RC_ASSERT(!describe(decision.state).empty());
}

RC_GTEST_PROP(MembershipProperty, reports_that_are_not_current_change_nothing, ()) {
  Walk walk = any_walk();
  const int rank = *rc::gen::inRange(-1, kWorldSize + 1);
  const uint32_t incarnation = *rc::gen::inRange<uint32_t>(0, 4);
  RC_PRE(!is_current(walk.state, rank, incarnation));
  const State before = walk.state;
  for (const Event& event : {Event(Joined{rank, incarnation, 1}), Event(Exited{rank, incarnation, "x"})}) {
    const Decision decision = walk.step(event);
    RC_ASSERT(decision.actions.empty());
    RC_ASSERT(decision.state == before);
  }
}

RC_GTEST_PROP(MembershipProperty, any_event_does_nothing_new_when_repeated, ()) {
  Walk walk = any_walk();
  const Event event = *any_event();
  walk.step(event);
  const State before = walk.state;
  const Decision again = decide(before, event, walk.now, kOptions);
  RC_ASSERT(again.state == before);
  for (const Action& action : again.actions) RC_ASSERT(std::holds_alternative<Refuse>(action));
}

RC_GTEST_PROP(MembershipProperty, tick_at_the_deadline_always_decides_something, ()) {
  Walk walk = any_walk();
  walk.step(Replace{{0, 1}});
  const std::optional<Time> deadline = next_deadline(walk.state, kOptions);
  RC_PRE(deadline.has_value());
  RC_ASSERT(!decide(walk.state, Tick{}, *deadline, kOptions).actions.empty());
  const Decision early = decide(walk.state, Tick{}, *deadline - std::chrono::nanoseconds(1), kOptions);
  RC_ASSERT(early.actions.empty());
}

RC_GTEST_PROP(MembershipProperty, only_a_rank_without_a_process_is_spawned_and_only_a_live_one_killed, ()) {
  Walk walk = any_walk();
  const Event event = *any_event();
  std::vector<bool> alive;
  for (const Member& member : walk.state.members) alive.push_back(member.alive);
  const auto* exited = std::get_if<Exited>(&event);
  if (exited && is_current(walk.state, exited->rank, exited->incarnation)) {
    alive[static_cast<size_t>(exited->rank)] = false;
  }
  for (const Action& action : walk.step(event).actions) {
    if (const auto* spawn = std::get_if<Spawn>(&action)) RC_ASSERT(!alive[static_cast<size_t>(spawn->rank)]);
    if (const auto* kill = std::get_if<Kill>(&action)) RC_ASSERT(alive[static_cast<size_t>(kill->rank)]);
  }
}

RC_GTEST_PROP(MembershipProperty, stop_and_the_exits_of_all_always_end_the_group, ()) {
  Walk walk = any_walk();
  RC_PRE(walk.state.phase != Phase::stopped);
  int announced = 0;
  const auto count = [&](const Decision& decision) {
    announced += static_cast<int>(std::ranges::count(decision.actions, Action(AnnounceStopped{})));
  };
  count(walk.step(Stop{}));
  for (int rank = 0; rank < kWorldSize; ++rank) {
    count(walk.step(Exited{rank, walk.state.members[static_cast<size_t>(rank)].incarnation, "x"}));
  }
  RC_ASSERT(announced == 1);
  RC_ASSERT(walk.state.phase == Phase::stopped);
}

}  // namespace
}  // namespace ddip::membership
