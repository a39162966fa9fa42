#include "ddip/pipeline/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace ddip::pipeline {
namespace {

using nlohmann::json;

// A rank that computed from 0 to `end` without a pause, for each of its stages.
json share(int rank, const std::vector<int>& stages, double end) {
  json found{{"stages", json::array()}, {"losses", json::array()}, {"trace", json::array()}};
  for (int stage : stages) {
    found["stages"].push_back({stage, rank, end, 0, 0, 0, 0, end, 0, json::array(), 0, 0, nullptr, 0, nullptr});
    found["trace"].push_back({rank, static_cast<int>(schedule::Kind::forward), 0, stage, 0, -1, 0, 0, 0.0, end});
  }
  return found;
}

TEST(Report, a_bubble_is_a_share_of_the_run_also_of_a_rank_that_ended_early) {
  const Report report = joined({share(0, {0}, 2.0), share(1, {1}, 0.5)}, 1, 1);
  EXPECT_DOUBLE_EQ(report.stages[0].bubble, 0);
  EXPECT_DOUBLE_EQ(report.stages[1].bubble, 0.75);
  EXPECT_DOUBLE_EQ(report.bubble(), 0.375);
}

TEST(Report, a_rank_counts_once_however_many_stages_it_has) {
  const Report report = joined({share(0, {0}, 2.0), share(1, {1, 2, 3}, 1.0)}, 1, 1);
  EXPECT_DOUBLE_EQ(report.bubble(), 0.25);
}

TEST(Report, a_batch_that_counted_nothing_has_no_loss) {
  json one = share(0, {0}, 1.0);
  one["losses"] = {{0, 6.0, 3.0}, {1, 0.0, 0.0}, {2, 1.0, 4.0}};
  Report report = joined({one}, 3, 1);
  EXPECT_DOUBLE_EQ(report.losses[0], 2);
  EXPECT_TRUE(std::isnan(report.losses[1]));
  EXPECT_DOUBLE_EQ(report.loss, 1);
  report.training = false;
  EXPECT_NE(report.text().find("3 batches in 1.00 s, mean loss 1"), std::string::npos) << report.text();
}

}  // namespace
}  // namespace ddip::pipeline
