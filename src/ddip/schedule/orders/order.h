// In which order a stage, or a rank with all its stages, computes one segment. One file for each family; everything
// else about a plan (messages, steps, versions) follows from these.
#pragma once

#include <cstdint>
#include <vector>

#include "ddip/schedule/action.h"
#include "ddip/schedule/request.h"
#include "ddip/schedule/segments.h"

namespace ddip::schedule {

struct Work {
  Kind kind = Kind::forward;  // forward, backward, weight_gradient or step
  int stage = 0;
  int64_t micro_batch = 0;
};

using Order = std::vector<Work>;

// Of one stage. Each appends the micro-batches of `segment`.
void append_seq(Order& order, int stage, const Segment& segment);
void append_gpipe(Order& order, int stage, const Segment& segment);
void append_1f1b(Order& order, int stage, const Segment& segment, int window);
// `delay`: weight gradients lag so many backwards behind, to fill the end.
void append_zb1(Order& order, int stage, const Segment& segment, int window, int delay);

// Of one rank with all its stages.
void append_interleaved(Order& order, const Request& request, int rank, const Segment& segment);
void append_zbv(Order& order, const Request& request, int rank, const Segment& segment);
bool zbv_fits(const Request& request, const Segment& segment);  // enough micro-batches to fill the V

}  // namespace ddip::schedule
