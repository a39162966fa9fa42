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
  scale.restore({.scale = 64, .finite = 0, .under_way = {32, 64}});
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

TEST(LossScaleTest, is_a_power_of_two) {
  for (double wrong : {0.0, -2.0, 3.0, 1e30, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(LossScale({wrong, 1}), ConfigError) << wrong;
  EXPECT_THROW(LossScale({2, -1}), ConfigError);
  EXPECT_EQ(LossScale({0.5, 1}).now(), 0.5);
}

}  // namespace ddip::pipeline
