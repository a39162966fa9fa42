// All forwards of a batch, then all backwards, the last one first: its activations are still there, so the last
// micro-batch needs no recomputation.
#include "ddip/schedule/orders/order.h"

namespace ddip::schedule {

void append_gpipe(Order& order, int stage, const Segment& segment) {
  for (int64_t micro_batch = segment.begin; micro_batch < segment.end; ++micro_batch)
    order.push_back({Kind::forward, stage, micro_batch});
  for (int64_t micro_batch = segment.end; micro_batch-- > segment.begin;)
    order.push_back({Kind::backward, stage, micro_batch});
}

}  // namespace ddip::schedule
