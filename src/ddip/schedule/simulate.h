// How long would it take? An event simulator: the plan's lists, the time of every computation and message.
#pragma once

#include <vector>

#include "ddip/schedule/plan.h"
#include "ddip/schedule/run.h"

namespace ddip::schedule {

struct Simulation {
  double makespan = 0;
  std::vector<double> utilisation;  // by rank: share of the makespan in which it computes
  // Share of the time of all ranks in which they wait.
  double bubble = 0;
  // The same without the time before a rank's first computation and after its last: in a long run these do not count.
  double inner_bubble = 0;
  std::vector<std::vector<Span>> timeline;  // by rank and action
};

// Costs that are left out (no stages, no links) are the request's. Throws ConfigError for a plan that is not right.
Simulation simulate(const Plan& plan, const Costs& costs);
Simulation simulate(const Plan& plan);

}  // namespace ddip::schedule
