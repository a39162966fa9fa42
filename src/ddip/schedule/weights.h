// Which weights each forward reads, how many steps they will be behind at its backward, and what a policy needs for it.
#pragma once

#include <vector>

#include "ddip/schedule/action.h"
#include "ddip/schedule/request.h"

namespace ddip::schedule {

using RankLists = std::vector<std::vector<Action>>;

// What 2bw reads: one version less than the micro-batches of the same step would find at its beginning.
int64_t version_read_behind(const std::vector<int64_t>& step_ends, int64_t micro_batch);

// Fills in version and staleness of every forward, backward, weight gradient and step.
void number_versions(const Request& request, RankLists& ranks);

// PREDICT right before a forward whose weights will be stale. STASH before the forward too, or before the step that
// overwrites what it will read, if that comes earlier. Both before every forward that has weights of its own.
void insert_policy_actions(const Request& request, RankLists& ranks);

}  // namespace ddip::schedule
