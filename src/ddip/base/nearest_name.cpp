#include "ddip/base/nearest_name.h"

#include <algorithm>
#include <cstddef>

namespace ddip {
namespace {

// Longer input is not a typing mistake, and the distance costs length squared.
constexpr std::size_t kLongestName = 64;

std::optional<std::string> only_completion(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() < 2) return std::nullopt;
  std::optional<std::string> found;
  for (const std::string& candidate : candidates) {
    if (!candidate.starts_with(name)) continue;
    if (found) return std::nullopt;
    found = candidate;
  }
  return found;
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: a swap looks two rows back.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::optional<std::string> nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.empty() || name.size() > kLongestName) return std::nullopt;
  if (auto completion = only_completion(name, candidates)) return completion;
  std::optional<std::string> best;
  int best_distance = 0;
  for (const std::string& candidate : candidates) {
    const int allowed = std::max<int>(1, static_cast<int>(std::max(name.size(), candidate.size())) / 3);
    const int distance = edit_distance(name, candidate);
    // A one-letter name is one change away from every other one: no resemblance.
    if (distance > allowed || distance >= static_cast<int>(candidate.size())) continue;
    if (best && distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const auto near = nearest_name(name, candidates);
  return near ? "; did you mean " + *near + "?" : "";
}

}  // namespace ddip
