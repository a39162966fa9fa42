// One rank's list for itself: everything that can be said without the other ranks.
#pragma once

#include <string>

#include "ddip/schedule/plan.h"

namespace ddip::schedule {

// "rank 1, action 7 (backward stage=0 …)", for errors.
std::string place(const Plan& plan, size_t rank, size_t index);

// Throws ConfigError: the first thing that is wrong. REQUIRES: plan.request is complete.
void check_list(const Plan& plan, size_t rank);

}  // namespace ddip::schedule
