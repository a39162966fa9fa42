// Lists of numbers as people write them: "0,2-3" or "all".
#pragma once

#include <string>
#include <vector>

namespace ddip::launch {

struct NumberRange {
  int first = 0;
  int last = 0;  // first <= last
  bool operator==(const NumberRange&) const = default;
};

// "3,0-1" as {3-3, 0-1}, in the order written; spaces around commas are allowed. Looks at spelling only, so nothing
// large is allocated for "0-999999999". `where` begins the ConfigError's line ("--ranks") and `noun` names one number.
std::vector<NumberRange> parse_ranges(const std::string& text, const std::string& where, const std::string& noun);

// The ranks meant by `text` ("all" or a list) in a group of `world_size`, ascending. ConfigError, one line, for a
// rank that is not in the group, one that is listed twice, and anything that is not a list.
// REQUIRES: world_size >= 1.
std::vector<int> parse_rank_list(const std::string& text, int world_size, const std::string& where = "--ranks");

// The same spelling check while no group is known yet: ConfigError, or nothing.
void check_rank_list(const std::string& text, const std::string& where = "--ranks");

// {0,1,2,5} as "0-2,5", in the order given; two neighbours stay "0,1". Empty: "".
std::string format_rank_list(const std::vector<int>& ranks);

}  // namespace ddip::launch
