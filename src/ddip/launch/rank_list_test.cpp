#include "ddip/launch/rank_list.h"

#include <gtest/gtest.h>

#include "ddip/base/testing/one_line.h"

namespace ddip::launch {
namespace {

using Ranks = std::vector<int>;

TEST(RankList, reads_numbers_ranges_and_all) {
  EXPECT_EQ(parse_rank_list("0,2-3", 4), (Ranks{0, 2, 3}));
  EXPECT_EQ(parse_rank_list("all", 3), (Ranks{0, 1, 2}));
  EXPECT_EQ(parse_rank_list("0", 1), (Ranks{0}));
  EXPECT_EQ(parse_rank_list("1-1", 2), (Ranks{1}));
  EXPECT_EQ(parse_rank_list("0, 2 - 3", 4), (Ranks{0, 2, 3}));
}

TEST(RankList, answers_in_rank_order_however_it_was_written) {
  EXPECT_EQ(parse_rank_list("3,0-1", 4), (Ranks{0, 1, 3}));
}

TEST(RankList, refuses_bad_lists_in_one_line_that_says_what_was_expected) {
  struct Case {
    std::string text;
    int world_size;
    std::string message;
  };
  const std::string expected = "; expected rank numbers such as 0,2-3, or all";
  const std::vector<Case> cases = {
      {"0,7", 4, "--ranks 0,7: rank 7 is not in this group (ranks 0-3)"},
      {"2-9", 4, "--ranks 2-9: rank 9 is not in this group (ranks 0-3)"},
      {"5-9", 4, "--ranks 5-9: rank 5 is not in this group (ranks 0-3)"},
      {"1", 1, "--ranks 1: rank 1 is not in this group (only rank 0)"},
      {"0-999999999", 4, "--ranks 0-999999999: rank 999999999 is not in this group (ranks 0-3)"},
      {"1,1", 4, "--ranks 1,1: rank 1 is listed twice; expected each rank once"},
      {"0-2,1-3", 4, "--ranks 0-2,1-3: rank 1 is listed twice; expected each rank once"},
      {"3-1", 4, "--ranks 3-1: the range 3-1 is reversed; expected 1-3"},
      {"-1", 4, "--ranks -1: -1 is not a rank number" + expected},
      {"0--1", 4, "--ranks 0--1: 0--1 is not a rank number" + expected},
      {"1-", 4, "--ranks 1-: 1- is not a rank number" + expected},
      {"1e9", 4, "--ranks 1e9: 1e9 is not a rank number" + expected},
      {"99999999999", 4, "--ranks 99999999999: 99999999999 is not a rank number" + expected},
      {"+1", 4, "--ranks +1: +1 is not a rank number" + expected},
      {"every", 4, "--ranks every: every is not a rank number" + expected},
      {"1,,2", 4, "--ranks 1,,2: there is nothing between two commas" + expected},
      {",", 4, "--ranks ,: there is nothing between two commas" + expected},
      {"", 4, "--ranks: the list is empty" + expected},
      {"  ", 4, "--ranks: the list is empty" + expected},
      {"1\n2", 4, "--ranks 1\\n2: 1\\n2 is not a rank number" + expected},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(config_error([&] { parse_rank_list(c.text, c.world_size); }), c.message) << c.text;
  }
}

TEST(RankList, checks_the_spelling_before_a_group_is_known) {
  EXPECT_NO_THROW(check_rank_list("0,2-3"));
  EXPECT_NO_THROW(check_rank_list("all"));
  EXPECT_NO_THROW(check_rank_list("0-999999999"));
  EXPECT_EQ(config_error([] { check_rank_list("3-1", "%%dip -S"); }),
            "%%dip -S 3-1: the range 3-1 is reversed; expected 1-3");
}

TEST(RankList, formats_runs_of_three_or_more_as_ranges) {
  EXPECT_EQ(format_rank_list({0, 1, 2, 5}), "0-2,5");
  EXPECT_EQ(format_rank_list({0, 1}), "0,1");
  EXPECT_EQ(format_rank_list({3, 1}), "3,1");
  EXPECT_EQ(format_rank_list({7}), "7");
  EXPECT_EQ(format_rank_list({}), "");
}

}  // namespace
}  // namespace ddip::launch
