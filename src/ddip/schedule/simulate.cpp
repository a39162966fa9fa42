#include "ddip/schedule/simulate.h"

#include <algorithm>
#include <limits>

#include "ddip/base/error.h"
#include "ddip/schedule/checker.h"

namespace ddip::schedule {

Simulation simulate(const Plan& plan) { return simulate(plan, plan.request.costs); }

Simulation simulate(const Plan& plan, const Costs& asked) {
  Request with_costs = plan.request;
  if (!asked.stages.empty()) with_costs.costs.stages = asked.stages;
  if (!asked.links.empty()) with_costs.costs.links = asked.links;
  const Costs costs = completed(with_costs).costs;
  require_right(plan);
  Simulation found;
  found.timeline = run(plan, costs, plan.capacity).ranks;
  const bool split = splits_backward(plan.request.schedule);
  double all_busy = 0, inner = 0;
  std::vector<double> busy;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    double sum = 0, first = std::numeric_limits<double>::infinity(), last = 0;
    for (size_t index = 0; index < plan.ranks[rank].size(); ++index) {
      const Span& span = found.timeline[rank][index];
      found.makespan = std::max(found.makespan, span.end);
      const double cost = cost_of(plan.ranks[rank][index], costs, split);
      if (cost == 0) continue;
      sum += cost;
      first = std::min(first, span.begin);
      last = std::max(last, span.end);
    }
    busy.push_back(sum);
    all_busy += sum;
    inner += std::max(0.0, last - first);
  }
  const double all = found.makespan * static_cast<double>(plan.ranks.size());
  for (const double sum : busy) found.utilisation.push_back(found.makespan > 0 ? sum / found.makespan : 0);
  found.bubble = all > 0 ? 1 - all_busy / all : 0;
  found.inner_bubble = inner > 0 ? 1 - all_busy / inner : 0;
  return found;
}

}  // namespace ddip::schedule
