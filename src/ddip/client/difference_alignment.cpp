#include "ddip/client/difference_alignment.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace ddip::client {
namespace {

Seats seats_of(const Runs& runs) {
  Seats seats;
  for (const Run& run : runs) seats.push_back(run.seat);
  return seats;
}

// No line is in all runs. Part those that share the most widely shared line from the rest, and align each part.
void part(const Runs& runs, const Emit& emit) {
  struct Count {
    size_t runs = 0;
    const Run* last = nullptr;
  };
  std::unordered_map<const Line*, Count> counts;
  const Line* shared = nullptr;
  size_t most = 1;
  for (const Run& run : runs) {
    for (const Line* line : run.lines) {
      Count& count = counts[line];
      if (std::exchange(count.last, &run) == &run || ++count.runs <= most) continue;
      most = count.runs;
      shared = line;
    }
  }
  if (shared == nullptr) {
    for (const Run& run : runs) {
      for (const Line* line : run.lines) emit({run.seat}, *line);
    }
    return;
  }
  Runs with, without;
  for (const Run& run : runs) {
    const bool has = std::find(run.lines.begin(), run.lines.end(), shared) != run.lines.end();
    (has ? with : without).push_back(run);
  }
  const bool with_first = std::pair(with.size(), with[0].seat) < std::pair(without.size(), without[0].seat);
  align(with_first ? with : without, emit);
  align(with_first ? without : with, emit);
}

// Finds, from one common line to the next, the nearest line that all runs have.
class Agreements {
 public:
  explicit Agreements(const Runs& runs) : runs_(runs), places_(runs.size()) {
    for (size_t k = 1; k < runs.size(); ++k) {
      for (size_t i = 0; i < runs[k].lines.size(); ++i) places_[k][runs[k].lines[i]].push_back(i);
    }
  }

  // The place in each run; nearest is the fewest lines skipped. Looks no farther than the best found, so that the
  // cost of all calls is linear in the lines they pass.
  std::optional<std::vector<size_t>> next(const std::vector<size_t>& from) const {
    std::optional<std::vector<size_t>> best;
    size_t best_cost = 0;
    for (size_t i = from[0]; i < runs_[0].lines.size() && (!best || i - from[0] < best_cost); ++i) {
      std::vector<size_t> place{i};
      size_t cost = i - from[0];
      for (size_t k = 1; k < runs_.size(); ++k) {
        const auto found = places_[k].find(runs_[0].lines[i]);
        if (found == places_[k].end()) break;
        const auto at = std::lower_bound(found->second.begin(), found->second.end(), from[k]);
        if (at == found->second.end()) break;
        place.push_back(*at);
        cost += *at - from[k];
      }
      if (place.size() < runs_.size() || (best && cost >= best_cost)) continue;
      best = std::move(place);
      best_cost = cost;
    }
    return best;
  }

 private:
  const Runs& runs_;
  std::vector<std::unordered_map<const Line*, std::vector<size_t>>> places_;
};

}  // namespace

void align(Runs runs, const Emit& emit) {
  std::erase_if(runs, [](const Run& run) { return run.lines.empty(); });
  if (runs.empty()) return;
  const Seats seats = seats_of(runs);
  const auto begins_like_first = [&](const Run& r) { return !r.lines.empty() && r.lines[0] == runs[0].lines[0]; };
  while (!runs[0].lines.empty() && std::all_of(runs.begin(), runs.end(), begins_like_first)) {
    emit(seats, *runs[0].lines[0]);
    for (Run& run : runs) run.lines = run.lines.subspan(1);
  }
  if (std::any_of(runs.begin(), runs.end(), [](const Run& run) { return run.lines.empty(); })) {
    return align(std::move(runs), emit);
  }

  const Agreements agreements(runs);
  std::vector<size_t> from(runs.size(), 0);
  bool any = false;
  const auto stretch = [&](const std::vector<size_t>* to) {
    Runs between;
    for (size_t k = 0; k < runs.size(); ++k) {
      const size_t end = to != nullptr ? (*to)[k] : runs[k].lines.size();
      if (end > from[k]) between.push_back({runs[k].seat, runs[k].lines.subspan(from[k], end - from[k])});
    }
    return between;
  };
  while (const auto place = agreements.next(from)) {
    align(stretch(&*place), emit);
    emit(seats, *runs[0].lines[(*place)[0]]);
    for (size_t k = 0; k < runs.size(); ++k) from[k] = (*place)[k] + 1;
    any = true;
  }
  any ? align(stretch(nullptr), emit) : part(runs, emit);
}

}  // namespace ddip::client
