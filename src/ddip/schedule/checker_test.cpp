#include "ddip/schedule/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddip::schedule {
namespace {

using ::testing::ElementsAre;

Request chain(const std::string& schedule, int stages, int micro_batches) {
  return {.schedule = schedule, .stages = stages, .micro_batches = micro_batches};
}

TEST(Checker, sends_that_wait_for_their_receiver_deadlock_1f1b_and_one_buffer_is_enough) {
  for (const int stages : {2, 4, 8}) {
    Request request = chain("1f1b", stages, 8);
    request.capacity.assign(static_cast<size_t>(stages - 1) * 2, 0);
    const Verdict rendezvous = check(make_plan(request));
    EXPECT_FALSE(rendezvous.deadlock_free);
    EXPECT_THAT(rendezvous.error, ::testing::EndsWith("nobody can go on"));
    request.capacity.assign(request.capacity.size(), 1);
    EXPECT_EQ(check(make_plan(request)).error, "");
  }
  Request request = chain("1f1b", 2, 8);
  request.capacity = {0, 0};
  EXPECT_EQ(check(make_plan(request)).error,
            "rank 0, action 4 (send activation stage=0 micro_batch=1 edge=0) waits for "
            "rank 1, action 3 (send gradient stage=1 micro_batch=0 edge=0) waits for rank 0: nobody can go on");
}

TEST(Checker, gpipe_can_do_with_sends_that_wait) {
  Request request = chain("gpipe", 2, 4);
  request.capacity = {0, 0};
  const Verdict verdict = check(make_plan(request));
  EXPECT_EQ(verdict.error, "");
  EXPECT_FALSE(verdict.stall_free);
}

TEST(Checker, a_skip_to_the_last_stage_needs_more_than_two_buffers_at_full_speed) {
  for (const int stages : {4, 6, 8}) {
    Request request = chain("async_1f1b", stages, 64);
    for (int stage = 0; stage + 1 < stages; ++stage) request.edges.push_back({stage, stage + 1});
    request.edges.push_back({0, stages - 1});
    const Plan plan = make_plan(request);
    const Verdict verdict = check(plan);
    ASSERT_EQ(verdict.error, "");
    EXPECT_TRUE(verdict.stall_free);
    EXPECT_EQ(verdict.frames[static_cast<size_t>(stages - 1) * 2], stages - 1);
    EXPECT_EQ(plan.capacity[static_cast<size_t>(stages - 1) * 2], stages) << "one more than full speed needs";
    request.capacity.assign(static_cast<size_t>(stages) * 2, 2);
    const Verdict twice = check(make_plan(request));
    EXPECT_FALSE(twice.stall_free);
    // Four stages get through, more of them do not even that: both ends of the skip are full of messages.
    EXPECT_EQ(twice.deadlock_free, stages == 4) << twice.error;
  }
}

TEST(Checker, counts_what_is_alive) {
  Request request = chain("async_1f1b", 4, 64);
  request.needs.stashes = true;
  const Verdict fast = check(make_plan(request));
  EXPECT_THAT(fast.activations, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(fast.versions, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(fast.staleness, ElementsAre(3, 2, 1, 0));
  request.accumulate = 2;
  EXPECT_THAT(check(make_plan(request)).versions, ElementsAre(3, 2, 2, 1));
  EXPECT_THAT(check(make_plan(chain("gpipe", 2, 5))).activations, ElementsAre(5, 5));
  EXPECT_THAT(check(make_plan(chain("zb1", 4, 8))).activations, ElementsAre(4, 4, 4, 4));
}

TEST(Checker, bounds_are_kept) {
  Plan plan = make_plan(chain("1f1b", 3, 8));
  plan.activations[1] = 1;
  EXPECT_EQ(check(plan).error, "stage 1: 2 micro-batches are alive at once: expected at most 1");
}

TEST(Checker, a_plan_that_promises_more_than_its_lists_hold_is_refused_before_memory_is_taken) {
  Plan plan = make_plan(chain("1f1b", 2, 2));
  plan.request.batches = 1'000'000;
  EXPECT_EQ(check(plan).error, "the plan has 24 actions: 2000000 micro-batches on 2 stages need 8000000 at least");
  plan.request.batches = 10'000'000'000;
  EXPECT_EQ(check(plan).error, "batches=10000000000: expected 1 to 5000000");
}

TEST(Checker, what_a_request_leaves_out_is_filled_in) {
  Plan plan = make_plan(chain("1f1b", 2, 2));
  plan.request = chain("1f1b", 2, 2);
  EXPECT_EQ(check(plan).error, "");
}

TEST(Checker, messages_that_come_in_another_order_than_they_are_received_are_refused) {
  // Each rank's list is sound for itself: both forwards have run before the second micro-batch is sent first.
  Plan plan = make_plan(chain("gpipe", 2, 2));
  auto& first = plan.ranks[0];
  ASSERT_EQ(first[1].kind, Kind::send);
  ASSERT_EQ(first[2].kind, Kind::forward);
  ASSERT_EQ(first[3].kind, Kind::send);
  const Action early = first[1];
  first[1] = first[2];
  first[2] = first[3];
  first[3] = early;
  std::vector<size_t> retires;
  for (size_t index = 0; index < first.size(); ++index)
    if (first[index].kind == Kind::retire) retires.push_back(index);
  ASSERT_EQ(retires.size(), 2u);
  std::swap(first[retires[0]], first[retires[1]]);
  EXPECT_EQ(
      check(plan).error,
      "rank 1, action 0 (receive activation stage=1 micro_batch=0 edge=0): what comes is micro-batch 1, from rank "
      "0, action 2");
}

TEST(Checker, errors_name_rank_place_action_and_what_is_missing) {
  const Plan right = make_plan(chain("1f1b", 2, 2));
  const auto without = [&](size_t rank, size_t index) {
    Plan plan = right;
    plan.ranks[rank].erase(plan.ranks[rank].begin() + static_cast<ptrdiff_t>(index));
    return check(plan).error;
  };
  EXPECT_EQ(
      without(1, 0),
      "rank 1, action 0 (forward stage=1 micro_batch=0 version=0 staleness=0): its activation from stage 0 was not "
      "received");
  EXPECT_EQ(without(0, 0),
            "rank 0, action 0 (send activation stage=0 micro_batch=0 edge=0): its forward has not run yet");
  EXPECT_EQ(
      without(1, 3),
      "rank 1, action 8 (retire gradient stage=1 micro_batch=0 edge=0): micro-batch 1 was sent earlier and is not "
      "retired");
}

}  // namespace
}  // namespace ddip::schedule
