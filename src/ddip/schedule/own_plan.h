// A plan of somebody's own, to be run in place of the one that is made.
#pragma once

#include "ddip/schedule/plan.h"

namespace ddip::schedule {

// `usual`: what is made for the same batches; `most_stale`: by stage, what was prepared for. The order of actions is
// theirs, and so are windows, capacities and bounds. Throws ConfigError, one line, for anything else, or if it is not
// right.
void require_runnable(const Plan& own, const Plan& usual, const std::vector<int>& most_stale);

}  // namespace ddip::schedule
