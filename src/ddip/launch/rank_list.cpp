#include "ddip/launch/rank_list.h"

#include <charconv>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string_view>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/launch/flag_values.h"

namespace ddip::launch {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Digits only: no sign, no blanks, and it fits.
std::optional<int> number(std::string_view text) {
  int value = 0;
  if (text.empty() || text.front() == '-') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string ranks_of_group(int world_size) {
  return world_size == 1 ? "only rank 0" : "ranks 0-" + std::to_string(world_size - 1);
}

}  // namespace

std::vector<NumberRange> parse_ranges(const std::string& text, const std::string& where, const std::string& noun) {
  const std::string expected = "expected " + noun + " numbers such as 0,2-3, or all";
  const std::string place = where + " " + shown(text) + ": ";
  if (trimmed(text).empty()) throw ConfigError(where + ": the list is empty; " + expected);

  std::vector<NumberRange> ranges;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = trimmed(rest.substr(0, comma));
    if (item.empty()) throw ConfigError(place + "there is nothing between two commas; " + expected);
    // From the second letter on, so that "-1" is no range but a bad number.
    const std::size_t dash = item.find('-', 1);
    const auto first = number(trimmed(item.substr(0, dash)));
    const auto last = dash == std::string_view::npos ? first : number(trimmed(item.substr(dash + 1)));
    if (!first || !last) throw ConfigError(place + shown(item) + " is not a " + noun + " number; " + expected);
    if (*first > *last) {
      throw ConfigError(place + "the range " + shown(item) + " is reversed; expected " + std::to_string(*last) + "-" +
                        std::to_string(*first));
    }
    ranges.push_back({*first, *last});
    if (comma == std::string_view::npos) return ranges;
    rest.remove_prefix(comma + 1);
  }
}

std::vector<int> parse_rank_list(const std::string& text, int world_size, const std::string& where) {
  DDIP_CHECK(world_size >= 1, "a group has at least one rank");
  std::vector<int> ranks;
  if (text == "all") {
    ranks.resize(static_cast<std::size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  const std::string place = where + " " + shown(text) + ": rank ";
  std::vector<bool> listed(static_cast<std::size_t>(world_size));
  for (const auto& [first, last] : parse_ranges(text, where, "rank")) {
    if (last >= world_size) {
      const int missing = first >= world_size ? first : last;
      throw ConfigError(place + std::to_string(missing) + " is not in this group (" + ranks_of_group(world_size) + ")");
    }
    for (int rank = first; rank <= last; ++rank) {
      auto seen = listed[static_cast<std::size_t>(rank)];
      if (seen) throw ConfigError(place + std::to_string(rank) + " is listed twice; expected each rank once");
      seen = true;
    }
  }
  for (int rank = 0; rank < world_size; ++rank) {
    if (listed[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

void check_rank_list(const std::string& text, const std::string& where) {
  if (text != "all") parse_ranges(text, where, "rank");
}

std::string format_rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    if (!text.empty()) text += ',';
    text += std::to_string(ranks[i]);
    if (end - i >= 3) text += '-' + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace ddip::launch
