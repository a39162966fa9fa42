#include "ddip/schedule/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ddip/base/error.h"
#include "ddip/schedule/checker.h"

namespace ddip::schedule {
namespace {

using ::testing::HasSubstr;

Plan small() { return make_plan({.schedule = "1f1b", .stages = 2, .micro_batches = 2}); }

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& text) {
  try {
    from_json(text);
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "accepted";
}

TEST(PlanFile, is_one_that_a_person_can_read) {
  const std::string text = to_json(small());
  EXPECT_THAT(text, HasSubstr("{\n  \"ddip_plan\": 1,\n  \"schedule\": \"1f1b\",\n  \"stages\": 2,\n"));
  EXPECT_THAT(text, HasSubstr("  \"edges\": [[0,1]],\n"));
  EXPECT_THAT(text, HasSubstr("    [\n      \"forward stage=0 micro_batch=0 version=0 staleness=0\",\n"
                              "      \"send activation stage=0 micro_batch=0 edge=0\",\n"));
}

TEST(PlanFile, a_hand_may_change_the_order_as_long_as_the_plan_is_right) {
  // 1F1B on two stages, edited so that the first stage waits for each backward: slower, and right.
  const std::string text = R"({"ddip_plan": 1, "schedule": "1f1b", "stages": 2, "micro_batches": 2, "batches": 1,
    "capacity": [1, 1], "ranks": [
      ["forward stage=0 micro_batch=0 version=0 staleness=0", "send activation stage=0 micro_batch=0 edge=0",
       "receive gradient stage=0 micro_batch=0 edge=0", "backward stage=0 micro_batch=0 version=0 staleness=0",
       "retire activation stage=0 micro_batch=0 edge=0",
       "forward stage=0 micro_batch=1 version=0 staleness=0", "send activation stage=0 micro_batch=1 edge=0",
       "receive gradient stage=0 micro_batch=1 edge=0", "backward stage=0 micro_batch=1 version=0 staleness=0",
       "step stage=0 micro_batch=1 version=1", "retire activation stage=0 micro_batch=1 edge=0", "drain micro_batch=1"],
      ["receive activation stage=1 micro_batch=0 edge=0", "forward stage=1 micro_batch=0 version=0 staleness=0",
       "backward stage=1 micro_batch=0 version=0 staleness=0", "send gradient stage=1 micro_batch=0 edge=0",
       "retire gradient stage=1 micro_batch=0 edge=0",
       "receive activation stage=1 micro_batch=1 edge=0", "forward stage=1 micro_batch=1 version=0 staleness=0",
       "backward stage=1 micro_batch=1 version=0 staleness=0", "send gradient stage=1 micro_batch=1 edge=0",
       "step stage=1 micro_batch=1 version=1", "retire gradient stage=1 micro_batch=1 edge=0",
       "drain micro_batch=1"]]})";
  EXPECT_EQ(check(from_json(text)).activations, (std::vector<int>{1, 1}));
}

TEST(PlanFile, mistakes_are_told_in_one_line) {
  const std::string right = to_json(small());
  EXPECT_EQ(refusal(right), "accepted");
  EXPECT_EQ(refusal("["), "it is no JSON, at byte 2");
  EXPECT_EQ(refusal("{}"), "it is no plan: \"ddip_plan\" is missing");
  EXPECT_EQ(refusal(changed(right, "\"ddip_plan\": 1", "\"ddip_plan\": 2")), "ddip_plan: expected 1");
  EXPECT_EQ(refusal(changed(right, "\"accumulate\"", "\"acumulate\"")),
            "\"acumulate\" is unknown; did you mean accumulate?");
  EXPECT_EQ(refusal(changed(right, "\"stages\": 2", "\"stages\": \"two\"")), "stages: expected a whole number");
  EXPECT_EQ(refusal(changed(right, "[[0,1]]", "[[0,1,2]]")), "edges[0]: expected [from, to]");
  EXPECT_EQ(refusal(changed(right, "  \"batches\": 1,\n", "")), "batches is missing");
  EXPECT_EQ(refusal(changed(right, "\"window\": [1,0]", "\"window\": [1,0], \"window\": [1,0]")),
            "it has \"window\" twice");
  EXPECT_EQ(
      refusal(changed(right, "forward stage=0", "forwards stage=0")),
      "rank 0, action 0: action \"forwards stage=0 micro_batch=0 version=0 staleness=0\": \"forwards\" is no kind of "
      "action; did you mean forward?");
  EXPECT_EQ(refusal(changed(right, "micro_batch=0 version=0", "version=0 micro_batch=0")),
            "rank 0, action 0: action \"forward stage=0 version=0 micro_batch=0 staleness=0\": expected micro_batch=N");
  EXPECT_THAT(refusal(changed(right, "stage=0 micro_batch=0", "stage=-1 micro_batch=0")),
              HasSubstr("stage=-1: expected a number from 0"));
  EXPECT_THAT(refusal(changed(right, "send activation", "send sideways")), HasSubstr("\"sideways\" is no direction"));
  EXPECT_THAT(refusal(changed(right, "staleness=0\"", "staleness=0 twice=1\"")), HasSubstr("\"twice=1\" is too much"));
}

TEST(PlanFile, a_plan_edited_into_a_deadlock_is_refused) {
  EXPECT_THAT(refusal(changed(to_json(small()), "\"capacity\": [2,2]", "\"capacity\": [0,0]")),
              ::testing::StartsWith("rank 0, action"));
  Plan plan = small();
  // The second stage wants the second micro-batch before it gives the first gradient; the first stage waits for that.
  for (int& room : plan.capacity) room = 1;
  auto& last = plan.ranks[1];
  std::stable_partition(last.begin(), last.end(), [](const Action& action) {
    return action.direction == Direction::activation || action.kind == Kind::forward;
  });
  EXPECT_THAT(check(plan).error, HasSubstr("rank"));
  EXPECT_NE(refusal(to_json(plan)), "accepted");
}

TEST(PlanFile, names_the_file) {
  const auto path = std::filesystem::temp_directory_path() / ("plan-" + std::to_string(getpid()) + ".json");
  save(small(), path);
  EXPECT_EQ(load(path).ranks, small().ranks);
  std::ofstream(path) << "{";
  try {
    load(path);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith(path.string() + ": it is no JSON"));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace ddip::schedule
