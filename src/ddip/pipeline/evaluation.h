// A rank's list of actions when nothing is trained: every micro-batch forward through all stages.
#pragma once

#include <vector>

#include "ddip/schedule/plan.h"

namespace ddip::pipeline {

std::vector<schedule::Action> forwards_only(const std::vector<schedule::Edge>& edges,
                                            const std::vector<int>& rank_of_stage, int rank, int64_t micro_batches);

}  // namespace ddip::pipeline
