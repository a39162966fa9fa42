// One micro-batch at a time passes through all stages: no overlap, the reference for everything.
#include "ddip/schedule/orders/order.h"

namespace ddip::schedule {

void append_seq(Order& order, int stage, const Segment& segment) {
  for (int64_t micro_batch = segment.begin; micro_batch < segment.end; ++micro_batch) {
    order.push_back({Kind::forward, stage, micro_batch});
    order.push_back({Kind::backward, stage, micro_batch});
  }
}

}  // namespace ddip::schedule
