// Membership in words, for errors, status pages and `ddip info`.
#pragma once

#include <string>
#include <vector>

#include "ddip/membership/membership.h"

namespace ddip::membership {

// "running, epoch 3, 1 of 2 ready", then one line per rank: "  rank 1  lost: killed by signal 9 (incarnation 2)".
std::string describe(const State& state);

// "rank 3", "ranks 0-3, 7". REQUIRES: ascending and without repeats.
std::string describe_ranks(const std::vector<int>& ranks);

const char* name_of(Phase phase);
const char* name_of(Status status);

}  // namespace ddip::membership
