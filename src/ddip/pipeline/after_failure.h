// Replicas after a run that failed: some may have done a step that others have not, and would stay different for ever.
// They all get the state of the one that came furthest.
#pragma once

#include "ddip/pipeline/saving.h"

namespace ddip::pipeline {

// All ranks together. The stages in which replicas differed, which they do not any more. Throws ConfigError on all of
// them if the optimizer of such a stage carries what is not known.
std::vector<int> make_replicas_equal(const RankOnDisk& rank);

}  // namespace ddip::pipeline
