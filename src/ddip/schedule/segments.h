// Where a run is cut: segments between which a stage has nothing under way, and the ends of optimizer steps.
#pragma once

#include <cstdint>
#include <vector>

#include "ddip/schedule/request.h"

namespace ddip::schedule {

// Micro-batches [begin, end): a stage does all their backwards before it begins the next segment.
struct Segment {
  int64_t begin = 0;
  int64_t end = 0;
  bool synchronous = true;
  bool drains = false;  // a DRAIN follows, on every rank
};

std::vector<Segment> segments(const Request& completed);

// For each step, in order: how many micro-batches are in the weights after it. The last one is all of them. A segment
// that drains ends with a step, even if fewer than `accumulate` are left.
std::vector<int64_t> step_ends(const Request& completed);

}  // namespace ddip::schedule
