// The messages that a plan's computations need: received right before they are used, sent right after they are made.
#pragma once

#include <vector>

#include "ddip/schedule/weights.h"

namespace ddip::schedule {

// RECV and SEND for every edge between two ranks.
void insert_messages(const Request& request, RankLists& ranks);

// RETIRE: before a SEND that would be one too many for its channel, and for all that is left before a drain.
void insert_retires(const Request& request, const std::vector<int>& capacity, RankLists& ranks);

}  // namespace ddip::schedule
