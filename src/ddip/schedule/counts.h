// What a plan holds at once.
#pragma once

#include <vector>

#include "ddip/schedule/plan.h"

namespace ddip::schedule {

// REQUIRES of all: well-formed actions. By stage.

// Micro-batches whose forward has run and whose last backward has not.
std::vector<int> most_activations(const Plan& plan);

// The newest weights, and those that are kept for a backward; with prediction, what was predicted from one version for
// different steps counts as different.
std::vector<int> most_versions(const Plan& plan);

std::vector<int> most_staleness(const Plan& plan);

// By channel: the most frames that can be under way whatever the timing: the receiver takes one only when nothing else
// in the whole plan can go on. With so much room no SEND ever waits.
std::vector<int> most_frames_ever(const Plan& plan);

}  // namespace ddip::schedule
