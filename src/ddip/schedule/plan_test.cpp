#include "ddip/schedule/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddip/base/error.h"
#include "ddip/schedule/checker.h"
#include "ddip/schedule/segments.h"
#include "ddip/schedule/window.h"

namespace ddip::schedule {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Request request_for(const std::string& schedule, int stages, int micro_batches, int64_t batches = 1) {
  return {.schedule = schedule, .stages = stages, .micro_batches = micro_batches, .batches = batches};
}

// "F0 F1 B0 S F2": what a stage computes, as a person would write it.
std::string computations(const Plan& plan, int stage) {
  std::string text;
  for (const auto& actions : plan.ranks)
    for (const Action& action : actions) {
      if (action.stage != stage) continue;
      const std::string number = std::to_string(action.micro_batch) + " ";
      if (action.kind == Kind::forward) text += "F" + number;
      if (action.kind == Kind::backward) text += "B" + number;
      if (action.kind == Kind::weight_gradient) text += "W" + number;
      if (action.kind == Kind::step) text += "S ";
    }
  return text;
}

std::vector<int> staleness(const Plan& plan, int stage) {
  std::vector<int> found;
  for (const auto& actions : plan.ranks)
    for (const Action& action : actions)
      if (action.stage == stage && action.kind == Kind::forward) found.push_back(action.staleness);
  return found;
}

std::string refusal(const Request& request) {
  try {
    make_plan(request);
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "accepted";
}

TEST(Plan, orders_are_those_of_the_textbook) {
  EXPECT_EQ(computations(make_plan(request_for("seq", 2, 2)), 0), "F0 B0 F1 B1 S ");
  EXPECT_EQ(computations(make_plan(request_for("gpipe", 2, 3, 2)), 0), "F0 F1 F2 B2 B1 B0 S F3 F4 F5 B5 B4 B3 S ");
  const Plan flushed = make_plan(request_for("1f1b", 3, 4));
  EXPECT_EQ(computations(flushed, 0), "F0 F1 F2 B0 F3 B1 B2 B3 S ");
  EXPECT_EQ(computations(flushed, 1), "F0 F1 B0 F2 B1 F3 B2 B3 S ");
  EXPECT_EQ(computations(flushed, 2), "F0 B0 F1 B1 F2 B2 F3 B3 S ");
  EXPECT_EQ(computations(make_plan(request_for("async_1f1b", 2, 2, 2)), 0), "F0 F1 B0 S F2 B1 S F3 B2 S B3 S ");
  const Plan split = make_plan(request_for("zb1", 3, 4));
  EXPECT_EQ(computations(split, 0), "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3 S ");
  EXPECT_EQ(computations(split, 2), "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3 S ");
}

// "F0.1 B2.0": what a rank computes, stage and micro-batch.
std::string work_of_rank(const Plan& plan, size_t rank) {
  std::string text;
  for (const Action& action : plan.ranks[rank])
    if (action.kind == Kind::forward || action.kind == Kind::backward)
      text += (action.kind == Kind::forward ? "F" : "B") + std::to_string(action.stage) + "." +
              std::to_string(action.micro_batch) + " ";
  return text;
}

TEST(Plan, interleaved_passes_groups_of_micro_batches_through_a_ranks_stages) {
  Request request = request_for("interleaved", 4, 4);
  request.rank_of_stage = {0, 1, 0, 1};
  EXPECT_EQ(work_of_rank(make_plan(request), 0),
            "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3 ");
}

TEST(Plan, stages_that_share_a_rank_take_turns_backward_first) {
  Request request = request_for("1f1b", 2, 2);
  request.rank_of_stage = {0, 0};
  EXPECT_EQ(work_of_rank(make_plan(request), 0), "F0.0 F1.0 B1.0 F0.1 B0.0 F1.1 B1.1 B0.1 ");
  // What cannot begin yet does not keep the rank from something that can: stage 2 waits for a slow link.
  request = request_for("1f1b", 3, 2);
  request.rank_of_stage = {0, 1, 0};
  request.costs.links = {5, 5};
  EXPECT_EQ(work_of_rank(make_plan(request), 0), "F0.0 F0.1 F2.0 B2.0 F2.1 B2.1 B0.0 B0.1 ");
}

TEST(Plan, staleness_counts_the_steps_between_a_forward_and_its_backward) {
  Request request = request_for("async_1f1b", 8, 8, 4);
  request.accumulate = 4;
  // d = 7: the first eight forwards come before the first step; then 2, 2, 2, 1 for ever.
  const std::vector<int> found = staleness(make_plan(request), 0);
  EXPECT_EQ(std::vector<int>(found.begin(), found.begin() + 8), (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
  for (size_t index = 8; index + 4 <= found.size(); index += 4)
    EXPECT_EQ(std::vector<int>(found.begin() + static_cast<ptrdiff_t>(index),
                               found.begin() + static_cast<ptrdiff_t>(index) + 4),
              (std::vector<int>{2, 2, 2, 1}));
  EXPECT_THAT(staleness(make_plan(request), 7), Each(0));
}

TEST(Plan, two_buffered_weights_are_one_step_behind_on_every_stage) {
  Request request = request_for("2bw", 3, 4, 4);
  request.accumulate = 4;
  const Plan plan = make_plan(request);
  for (const auto& actions : plan.ranks)
    for (const Action& action : actions)
      if (action.kind == Kind::forward) {
        EXPECT_EQ(action.version, std::max<int64_t>(0, action.micro_batch / 4 - 1));
        EXPECT_EQ(action.staleness, action.micro_batch < 4 ? 0 : 1);
      }
  EXPECT_THAT(check(plan).versions, Each(2));
  request.accumulate = 2;
  EXPECT_EQ(refusal(request), "2bw: accumulate=2: expected at least 3, for 3 stages behind one another");
}

TEST(Plan, a_window_longer_than_a_step_is_cut_and_said) {
  for (const char* name : {"2bw", "paci"}) {
    Request request = request_for(name, 3, 4, 4);
    request.accumulate = 3;
    request.window = {6, 3, 0};
    const Plan plan = make_plan(request);
    EXPECT_THAT(plan.request.window, ElementsAre(3, 3, 0));
    ASSERT_EQ(plan.notes.size(), 1u);
    EXPECT_EQ(plan.notes[0],
              std::string(name) + ": window [6, 3, 0] was cut to [3, 3, 0], since a step has 3 micro-batches");
    EXPECT_EQ(check(plan).error, "");
    for (const int most : check(plan).staleness) EXPECT_LE(most, 1);
  }
}

TEST(Plan, virtual_async_lets_only_the_front_run_ahead) {
  Request request = request_for("virtual_async", 4, 4, 4);
  request.max_staleness = 2;
  const Plan plan = make_plan(request);
  EXPECT_THAT(plan.request.window, ElementsAre(2, 1, 0, 0));
  EXPECT_THAT(check(plan).staleness, ElementsAre(2, 1, 0, 0));
  request.max_staleness = 9;
  EXPECT_THAT(make_plan(request).request.window, ElementsAre(3, 2, 1, 0));
}

TEST(Plan, the_window_follows_from_the_link) {
  Request request = request_for("async_1f1b", 4, 4);
  EXPECT_THAT(default_window(request), ElementsAre(3, 2, 1, 0));
  request.costs.links = {0, 1.5, 3};  // c = 3
  EXPECT_THAT(default_window(request), ElementsAre(6, 5, 3, 0));
  request.costs.links = {0, 1.6, 3};
  EXPECT_THAT(default_window(request), ElementsAre(7, 6, 3, 0));
}

TEST(Plan, drains_lie_where_the_phases_change_and_a_step_goes_before_each) {
  Request request = request_for("async_1f1b", 2, 3, 8);
  request.accumulate = 2;
  request.warmup = 2;
  request.flush_every = 4;
  request.switch_at = 6;
  // Two synchronous batches, two and two asynchronous ones, two synchronous ones.
  const Plan plan = make_plan(request);
  EXPECT_THAT(step_ends(plan.request), ElementsAre(3, 6, 8, 10, 12, 14, 16, 18, 21, 24));
  std::vector<int64_t> drains;
  for (const Action& action : plan.ranks[0])
    if (action.kind == Kind::drain) drains.push_back(action.micro_batch);
  EXPECT_THAT(drains, ElementsAre(5, 11, 17, 23));
  EXPECT_EQ(computations(plan, 0),
            "F0 F1 B0 F2 B1 B2 S F3 F4 B3 F5 B4 B5 S "
            "F6 F7 B6 F8 B7 S F9 B8 F10 B9 S F11 B10 B11 S "
            "F12 F13 B12 F14 B13 S F15 B14 F16 B15 S F17 B16 B17 S "
            "F18 F19 B18 F20 B19 B20 S F21 F22 B21 F23 B22 B23 S ");
  EXPECT_EQ(check(plan).error, "");
}

TEST(Plan, a_step_that_is_left_over_at_the_end_has_fewer_micro_batches) {
  Request request = request_for("async_1f1b", 2, 4, 2);
  request.accumulate = 3;
  request.last_batch = 3;
  EXPECT_THAT(step_ends(completed(request)), ElementsAre(3, 6, 7));
  Request batches = request_for("gpipe", 2, 4, 5);
  batches.accumulate = 2;
  EXPECT_THAT(step_ends(completed(batches)), ElementsAre(8, 16, 20));
}

TEST(Plan, a_policy_gets_its_predictions_and_stashes_where_weights_will_be_stale) {
  Request request = request_for("async_1f1b", 2, 4);
  request.needs = {.predicts = true, .stashes = true};
  const Plan plan = make_plan(request);
  std::string first;
  for (const Action& action : plan.ranks[0])
    if (action.direction == Direction::none) first += to_text(action) + "\n";
  EXPECT_EQ(first.substr(0, first.find("step")),
            "forward stage=0 micro_batch=0 version=0 staleness=0\n"
            "predict stage=0 micro_batch=1 version=0 staleness=1\n"
            "stash stage=0 micro_batch=1 version=0 staleness=1\n"
            "forward stage=0 micro_batch=1 version=0 staleness=1\n"
            "backward stage=0 micro_batch=0 version=0 staleness=0\n");
  for (const Action& action : plan.ranks[1])
    EXPECT_TRUE(action.kind != Kind::predict && action.kind != Kind::stash) << "the last stage is never stale";
}

TEST(Plan, what_cannot_be_is_refused_with_one_line) {
  EXPECT_THAT(refusal(request_for("1f1bb", 2, 2)), HasSubstr("did you mean 1f1b?"));
  EXPECT_EQ(refusal(request_for("1f1b", 0, 2)), "stages=0: expected 1 to 4096");
  EXPECT_THAT(refusal(request_for("interleaved", 4, 4)), HasSubstr("rank_of_stage is missing"));
  EXPECT_THAT(refusal(request_for("zbv", 3, 4)), HasSubstr("expected the V"));
  EXPECT_THAT(refusal(request_for("virtual_async", 3, 4)), HasSubstr("max_staleness is missing"));
  EXPECT_EQ(refusal(request_for("paci", 4, 4)),
            "paci: accumulate=1: expected at least 3, for 4 stages behind one another");
  Request request = request_for("1f1b", 3, 4);
  request.window = {1, 2, 0};
  EXPECT_EQ(refusal(request), "window [1, 2, 0]: stage 1 may not run further ahead than stage 0, which feeds it");
  request = request_for("1f1b", 3, 4);
  request.edges = {{0, 1}, {1, 0}};
  EXPECT_EQ(refusal(request), "edge 1 -> 0: expected a stage and a later one of 3");
  request.edges = {{0, 1}, {0, 2}};
  EXPECT_EQ(refusal(request), "edges: nothing leads on from stage 1");
  request.edges = {{0, 2}, {1, 2}};
  EXPECT_EQ(refusal(request), "edges: nothing leads to stage 1");
  request = request_for("1f1b", 3, 4);
  request.rank_of_stage = {0, 2, 0};
  EXPECT_EQ(refusal(request), "rank_of_stage: rank 1 has no stage");
  request = request_for("interleaved", 4, 3);
  request.rank_of_stage = {0, 1, 0, 1};
  EXPECT_EQ(refusal(request), "interleaved: 3 micro-batches: expected a multiple of the 2 ranks");
  request = request_for("1f1b", 2, 4);
  request.costs.links = {-1};
  EXPECT_EQ(refusal(request), "cost -1: expected a time from 0");
}

}  // namespace
}  // namespace ddip::schedule
