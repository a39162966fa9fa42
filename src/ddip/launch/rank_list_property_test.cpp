#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <set>

#include "ddip/base/error.h"
#include "ddip/launch/rank_list.h"

namespace ddip::launch {
namespace {

TEST(RankListProperty, formatted_ranks_read_back_as_themselves) {
  EXPECT_TRUE(rc::check([] {
    const int world_size = *rc::gen::inRange(1, 200);
    const auto chosen = *rc::gen::nonEmpty(rc::gen::container<std::set<int>>(rc::gen::inRange(0, world_size)));
    const std::vector<int> ranks(chosen.begin(), chosen.end());
    RC_ASSERT(parse_rank_list(format_rank_list(ranks), world_size) == ranks);
  }));
}

TEST(RankListProperty, any_text_is_a_list_of_the_groups_ranks_or_one_line) {
  EXPECT_TRUE(rc::check([] {
    const auto text = *rc::gen::oneOf(rc::gen::arbitrary<std::string>(),
                                      rc::gen::container<std::string>(rc::gen::elementOf(std::string("0123-, al"))));
    const int world_size = *rc::gen::inRange(1, 20);
    try {
      const auto ranks = parse_rank_list(text, world_size);
      RC_ASSERT(!ranks.empty());
      RC_ASSERT(std::is_sorted(ranks.begin(), ranks.end()));
      RC_ASSERT(std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end());
      RC_ASSERT(ranks.front() >= 0 && ranks.back() < world_size);
    } catch (const ConfigError& error) {
      RC_ASSERT(std::string(error.what()).find('\n') == std::string::npos);
    }
  }));
}

}  // namespace
}  // namespace ddip::launch
