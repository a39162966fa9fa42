#include "ddip/base/nearest_name.h"

#include <gtest/gtest.h>

namespace ddip {
namespace {

const std::vector<std::string> kFlags = {"--workers", "--name", "--gpus", "--gc", "--master-port", "--restart"};

TEST(EditDistance, counts_inserted_missing_changed_and_swapped_letters) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("name", "nmae"), 1);
  EXPECT_EQ(edit_distance("name", "names"), 1);
  EXPECT_EQ(edit_distance("name", "game"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(NearestName, finds_the_flag_behind_a_typing_mistake) {
  EXPECT_EQ(nearest_name("--wrokers", kFlags), "--workers");
  EXPECT_EQ(nearest_name("--worker", kFlags), "--workers");
  EXPECT_EQ(nearest_name("--masterport", kFlags), "--master-port");
  EXPECT_EQ(nearest_name("--gpu", kFlags), "--gpus");
}

TEST(NearestName, completes_a_beginning_that_only_one_name_has) {
  EXPECT_EQ(nearest_name("--w", kFlags), "--workers");
  EXPECT_EQ(nearest_name("--master", kFlags), "--master-port");
}

TEST(NearestName, says_nothing_rather_than_something_far_away) {
  EXPECT_EQ(nearest_name("--checkpoint-every", kFlags), std::nullopt);
  EXPECT_EQ(nearest_name("", kFlags), std::nullopt);
  EXPECT_EQ(nearest_name("x", {"a", "b"}), std::nullopt);
  EXPECT_EQ(nearest_name("name", {}), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), kFlags), std::nullopt);
}

TEST(NearestName, prefers_the_closest_then_the_first) {
  EXPECT_EQ(nearest_name("stop", {"step", "stops"}), "stops");  // the only completion
  EXPECT_EQ(nearest_name("stxp", {"step", "stop"}), "step");
}

TEST(DidYouMean, is_ready_to_append) {
  EXPECT_EQ(did_you_mean("--nmae", kFlags), "; did you mean --name?");
  EXPECT_EQ(did_you_mean("--zebra-crossing", kFlags), "");
}

}  // namespace
}  // namespace ddip
