#include "ddip/pipeline/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace ddip::pipeline {
namespace {

using nlohmann::json;

// A rank that computed from 0 to `end` without a pause, for each of its stages.
json share(int rank, const std::vector<int>& stages, double end, double start = 100, const char* machine = "a") {
  json found{{"stages", json::array()},
             {"losses", json::array()},
             {"trace", json::array()},
             {"start", start},
             {"machine", machine}};
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

TEST(Report, ranks_of_one_machine_are_on_one_clock) {
  const Report report = joined({share(0, {0}, 2, 100.25), share(1, {1}, 1, 100), share(2, {2}, 1, 7, "b")}, 1, 1);
  ASSERT_EQ(report.trace.size(), 3U);
  EXPECT_DOUBLE_EQ(report.trace[0].begin, 0.25);
  EXPECT_DOUBLE_EQ(report.trace[0].end, 2.25);
  EXPECT_DOUBLE_EQ(report.trace[1].begin, 0);
  EXPECT_DOUBLE_EQ(report.trace[2].begin, 0);
  EXPECT_DOUBLE_EQ(report.seconds, 2.25);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Report, a_timeline_has_a_row_for_each_stage_and_boxes_where_the_actions_were) {
  // Stage 1 on rank 1 begins a second later; rank 2 is another replica's.
  const Report report = joined({share(0, {0}, 2, 100), share(1, {1}, 1, 101), share(2, {0}, 2, 100)}, 1, 1);
  const std::string picture = report.timeline();
  EXPECT_EQ(count(picture, ">stage 0<"), 1U);
  EXPECT_EQ(count(picture, ">stage 1<"), 1U);
  EXPECT_EQ(count(picture, "stroke=\"#2f6ca3\""), 2U + 1 + 1) << "two boxes, and what they are in the legend";
  // 2000 ms are 842 pixels, from 104 on.
  EXPECT_EQ(count(picture, "<rect x=\"104.00\" y=\"44.0\" width=\"842.00\""), 1U) << picture;
  EXPECT_EQ(count(picture, "<rect x=\"525.00\" y=\"78.0\" width=\"421.00\""), 1U) << picture;
  EXPECT_NE(picture.find("time, ms"), std::string::npos);
  const std::string half = report.timeline(1);
  EXPECT_EQ(count(half, "width=\"842.00\""), 1U) << "one that goes on is cut";
}

TEST(Report, of_a_long_run_the_beginning_is_drawn) {
  json one = share(0, {0}, 1);
  for (int i = 1; i < 9000; ++i)
    one["trace"].push_back({0, static_cast<int>(schedule::Kind::forward), 0, 0, i, -1, 0, 0, 1.0 * i, i + 1.0});
  const size_t boxes = count(joined({one}, 9000, 1).timeline(), "<rect");
  EXPECT_GT(boxes, 3990U);
  EXPECT_LT(boxes, 4010U);
}

}  // namespace
}  // namespace ddip::pipeline
