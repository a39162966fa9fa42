#include "ddip/schedule/window.h"

#include <algorithm>
#include <cmath>

namespace ddip::schedule {

// Of one link; no run has so many micro-batches in flight.
constexpr double kMostAhead = 1000;

std::vector<int> default_window(const Request& asked) {
  const Request request = completed(asked);
  std::vector<double> busy(static_cast<size_t>(request.ranks()), 0);
  for (int stage = 0; stage < request.stages; ++stage)
    busy[static_cast<size_t>(request.rank_of_stage[static_cast<size_t>(stage)])] +=
        request.costs.stage(stage).micro_batch();
  const double slowest = *std::max_element(busy.begin(), busy.end());
  std::vector<int> window(static_cast<size_t>(request.stages), 0);
  for (int stage = request.stages - 1; stage >= 0; --stage)
    for (size_t edge = 0; edge < request.edges.size(); ++edge) {
      if (request.edges[edge].from != stage) continue;
      // Measured times are never exact: 2.0000001 micro-batches are two.
      const double link = request.message_time(static_cast<int>(edge));
      const double wanted = slowest > 0 ? std::ceil((slowest + 2 * link) / slowest - 1e-6) : 1;
      const int ahead = static_cast<int>(std::min(wanted, kMostAhead));
      int& mine = window[static_cast<size_t>(stage)];
      mine = std::max(mine, window[static_cast<size_t>(request.edges[edge].to)] + ahead);
    }
  return window;
}

std::vector<int> capped_window(const std::vector<int>& window, int most) {
  const int first = *std::max_element(window.begin(), window.end());
  std::vector<int> capped;
  for (const int ahead : window) capped.push_back(std::max(0, std::min(first, most) - (first - ahead)));
  return capped;
}

}  // namespace ddip::schedule
