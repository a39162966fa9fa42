#include "ddip/pipeline/loss_scale.h"

#include <gtest/gtest.h>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

// What becomes of the scale when each step is known at once.
std::vector<double> scales(LossScale scale, const std::vector<bool>& finite) {
  std::vector<double> found;
  for (bool one : finite) {
    scale.stepped(one);
    found.push_back(scale.now());
  }
  return found;
}

}  // namespace

TEST(LossScaleTest, is_halved_by_a_step_that_is_too_large_and_doubled_after_some_that_are_not) {
  EXPECT_EQ(scales(LossScale({64, 3}), {false, false, true, true, true, true, true, false, true, true, true}),
            (std::vector<double>{32, 16, 16, 16, 32, 32, 32, 16, 16, 16, 32}));
}

TEST(LossScaleTest, one_that_is_fixed_stays) {
  EXPECT_EQ(scales(LossScale({64, 0}), {false, true, true, false}), (std::vector<double>{64, 64, 64, 64}));
}

TEST(LossScaleTest, stays_within_what_numbers_can_be) {
  EXPECT_EQ(scales(LossScale({LossScale::kLeast, 1}), {false, true}),
            (std::vector<double>{LossScale::kLeast, 2 * LossScale::kLeast}));
  EXPECT_EQ(scales(LossScale({LossScale::kMost, 1}), {true, false}),
            (std::vector<double>{LossScale::kMost, LossScale::kMost / 2}));
}

// Two steps later: those that were under way with the large scale halve it no further.
TEST(LossScaleTest, what_is_known_late_counts_for_the_scale_that_the_step_had) {
  LossScale scale({64, 2});
  std::vector<double> found;
  for (std::optional<bool> finite : std::vector<std::optional<bool>>{
           {}, {}, false /* of 64 */, false /* 64 */, false /* 64 */, true /* 32 */, true /* 32 */, true /* 32 */}) {
    scale.stepped(finite);
    found.push_back(scale.now());
  }
  EXPECT_EQ(found, (std::vector<double>{64, 64, 32, 32, 32, 32, 64, 64}));
  EXPECT_EQ(scale.state().under_way, (std::vector<double>{32, 64}));
}

// After the last steps above: one of 32, which had been enough until then, was too large.
TEST(LossScaleTest, falls_below_a_scale_that_was_too_large_before_it_grew) {
  LossScale scale({64, 2});
  scale.restore({.scale = 64, .finite = 0, .under_way = {32, 64}}, 2);
  scale.stepped(false);
  EXPECT_EQ(scale.now(), 16);
  scale.stepped(false);  // of 64: known already
  EXPECT_EQ(scale.now(), 16);
}

TEST(LossScaleTest, after_a_failure_nothing_is_under_way) {
  LossScale scale({64, 2});
  scale.stepped({});
  scale.stepped({});
  scale.forget();
  scale.stepped(true);
  EXPECT_EQ(scale.state(), (LossScale::State{.scale = 64, .finite = 1, .under_way = {}}));
}

// What was under way where steps are known five steps later is known two steps later here.
TEST(LossScaleTest, of_another_run_only_so_many_steps_are_under_way_as_are_known_later_here) {
  const LossScale::State five{.scale = 16, .finite = 3, .under_way = {128, 64, 32, 16, 16}};
  LossScale scale({64, 2});
  EXPECT_EQ(scale.restore(five, 2), 2);
  EXPECT_EQ(scale.state(), (LossScale::State{.scale = 16, .finite = 3, .under_way = {16, 16}}));
  EXPECT_EQ(scale.restore(five, 0), 0);
  EXPECT_TRUE(scale.state().under_way.empty());
  EXPECT_EQ(scale.restore({.scale = 16, .finite = 3, .under_way = {16}}, 4), 1);
}

TEST(LossScaleTest, one_that_is_fixed_stays_whatever_another_run_had) {
  LossScale scale({64, 0});
  scale.restore({.scale = 2048, .finite = 3, .under_way = {}}, 2);
  EXPECT_EQ(scale.now(), 64);
}

TEST(LossScaleTest, what_can_be_nobodys_is_refused) {
  using State = LossScale::State;
  EXPECT_NO_THROW(LossScale::require({.scale = 0.5, .finite = 0, .under_way = {1, 2}}));
  for (const State& wrong :
       {State{.scale = 0, .finite = 0, .under_way = {}}, State{.scale = 3, .finite = 0, .under_way = {}},
        State{.scale = 2, .finite = -1, .under_way = {}}, State{.scale = 2, .finite = 0, .under_way = {2, 5}}})
    EXPECT_THROW(LossScale::require(wrong), ConfigError);
}

TEST(LossScaleTest, is_a_power_of_two) {
  for (double wrong : {0.0, -2.0, 3.0, 1e30, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(LossScale({wrong, 1}), ConfigError) << wrong;
  EXPECT_THROW(LossScale({2, -1}), ConfigError);
  EXPECT_EQ(LossScale({0.5, 1}).now(), 0.5);
}

}  // namespace ddip::pipeline
