// A plan of somebody's own, to be run in place of the one that is made.
#pragma once

#include "ddip/schedule/plan.h"

namespace ddip::schedule {

struct Prepared {
  std::vector<int> most_stale;  // by stage: how many steps old its weights may be
  bool steps_meet = false;      // a step waits for the gradients of all stages: a limit on their norm, a scaled loss
};

// `usual`: what is made for the same batches. The order of actions is theirs, and so are windows, capacities and
// bounds. Throws ConfigError, one line, for anything else, or if it is not right.
void require_runnable(const Plan& own, const Plan& usual, const Prepared& pipeline);

}  // namespace ddip::schedule
