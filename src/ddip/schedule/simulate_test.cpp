// The figures of the literature, and of the plan's own arithmetic, come out of the event simulator.
#include "ddip/schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ddip/schedule/window.h"

namespace ddip::schedule {
namespace {

Simulation bubbles(const std::string& schedule, int ranks, int chunks, int micro_batches) {
  Request request{.schedule = schedule, .stages = ranks * chunks, .micro_batches = micro_batches};
  if (schedule == "interleaved")
    for (int stage = 0; stage < request.stages; ++stage) request.rank_of_stage.push_back(stage % ranks);
  return simulate(make_plan(request));
}

TEST(Simulate, bubbles_are_those_of_the_formulas) {
  for (const int p : {2, 4, 8})
    for (const int m : {16, 32}) {
      EXPECT_NEAR(bubbles("gpipe", p, 1, m).bubble, (p - 1.0) / (m + p - 1), 1e-12);
      EXPECT_NEAR(bubbles("1f1b", p, 1, m).bubble, (p - 1.0) / (m + p - 1), 1e-12);
      for (const int v : {2, 3})
        EXPECT_NEAR(bubbles("interleaved", p, v, m).bubble, (p - 1.0) / (v * m + p - 1), 1e-12);
      EXPECT_NEAR(bubbles("zb1", p, 1, m).bubble, (p - 1.0) / (3 * m + p - 1), 1e-12);
      EXPECT_NEAR(bubbles("zbv", p, 2, m).inner_bubble, 0, 1e-12);
      EXPECT_NEAR(bubbles("seq", p, 1, m).bubble, (p - 1.0) / p, 1e-12);
    }
}

TEST(Simulate, zero_bubbles_need_equal_times) {
  Request request{.schedule = "zbv", .stages = 8, .micro_batches = 16};
  request.costs.stages.assign(8, {1, 1.5, 0.5, 0, 0});
  EXPECT_GT(simulate(make_plan(request)).inner_bubble, 0.01);
}

// c = 1: a third forward, two thirds backward.
Request linked(const std::string& schedule, int stages, int micro_batches, double link, int64_t total) {
  Request request{
      .schedule = schedule, .stages = stages, .micro_batches = micro_batches, .batches = total / micro_batches};
  request.costs.stages.assign(static_cast<size_t>(stages), {1.0 / 3, 1.0 / 3, 1.0 / 3, 0, 0});
  request.costs.links.assign(static_cast<size_t>(stages - 1), link);
  return request;
}

double rate(Request request, bool wide) {
  if (wide) request.window = default_window(request);
  const Plan plan = make_plan(request);
  return static_cast<double>(plan.request.total()) / simulate(plan).makespan;
}

TEST(Simulate, the_textbook_window_waits_for_the_link_and_the_default_one_does_not) {
  for (const double link : {0.17, 0.5, 1.0}) {
    EXPECT_NEAR(rate(linked("async_1f1b", 2, 8, link, 1600), false), 1 / (1 + link), 0.003);
    for (const int stages : {2, 4, 8}) EXPECT_GT(rate(linked("async_1f1b", stages, 8, link, 4800), true), 0.99);
  }
  // A link that takes longer than a computation is what limits everything, whatever the window.
  EXPECT_NEAR(rate(linked("async_1f1b", 2, 8, 2.0, 1600), true), 0.5, 0.01);
}

TEST(Simulate, asynchronous_gains_over_the_best_synchronous_schedule) {
  const auto gain = [](int stages, int micro_batches, double link) {
    const int64_t total = 576;
    const double best = std::max({rate(linked("gpipe", stages, micro_batches, link, total), false),
                                  rate(linked("1f1b", stages, micro_batches, link, total), false),
                                  rate(linked("1f1b", stages, micro_batches, link, total), true)});
    return rate(linked("async_1f1b", stages, micro_batches, link, total), true) / best;
  };
  EXPECT_NEAR(gain(2, 8, 0.5), 1.25, 0.006);
  EXPECT_NEAR(gain(2, 8, 1.0), 1.37, 0.006);
  EXPECT_NEAR(gain(4, 8, 0.5), 1.73, 0.006);
  EXPECT_NEAR(gain(4, 8, 1.0), 2.09, 0.006);
  EXPECT_NEAR(gain(2, 32, 0.5), 1.06, 0.006);
  EXPECT_NEAR(gain(4, 32, 1.0), 1.26, 0.006);
}

TEST(Simulate, steps_and_predictions_take_their_time) {
  Request request{.schedule = "async_1f1b", .stages = 1, .micro_batches = 4};
  request.costs.stages = {{1, 1, 1, 0.5, 0.25}};
  EXPECT_DOUBLE_EQ(simulate(make_plan(request)).makespan, 4 * 3 + 4 * 0.5);
  request.stages = 2;
  request.costs.stages.assign(2, {1, 1, 1, 0, 0.25});
  request.needs.predicts = true;
  const Simulation with = simulate(make_plan(request));
  EXPECT_DOUBLE_EQ(with.utilisation[0] * with.makespan, 4 * 3 + 3 * 0.25) << "the first forward needs no prediction";
}

TEST(Simulate, without_room_the_sender_waits) {
  // A fast stage before a slow one: with one buffer it cannot run ahead.
  Request request{.schedule = "gpipe", .stages = 2, .micro_batches = 4};
  request.costs.stages = {{1, 1, 1, 0, 0}, {3, 1, 1, 0, 0}};
  request.capacity = {1, 1};
  const Plan tight = make_plan(request);
  const Simulation found = simulate(tight);
  std::vector<double> forwards;
  for (size_t index = 0; index < tight.ranks[0].size(); ++index)
    if (tight.ranks[0][index].kind == Kind::forward) forwards.push_back(found.timeline[0][index].begin);
  EXPECT_EQ(forwards, (std::vector<double>{0, 1, 2, 4}));
}

}  // namespace
}  // namespace ddip::schedule
