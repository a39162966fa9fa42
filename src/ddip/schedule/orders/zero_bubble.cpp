// 1F1B with the backward split in two. Nobody waits for the gradients of weights: the later a stage gets its first
// gradient (the nearer it is to the front), the fewer it saves up; the others spend theirs where 1F1B would wait.
#include <algorithm>

#include "ddip/schedule/orders/order.h"

namespace ddip::schedule {

void append_zb1(Order& order, int stage, const Segment& segment, int window, int delay) {
  int64_t forwards = segment.begin, backwards = segment.begin, weights = segment.begin;
  for (const int64_t first = std::min(segment.begin + window, segment.end); forwards < first; ++forwards)
    order.push_back({Kind::forward, stage, forwards});
  while (backwards < segment.end) {
    const bool last_forwards_done = forwards == segment.end;
    if (!last_forwards_done) order.push_back({Kind::forward, stage, forwards++});
    order.push_back({Kind::backward, stage, backwards++});
    if (last_forwards_done || backwards - weights > delay) order.push_back({Kind::weight_gradient, stage, weights++});
  }
  while (weights < segment.end) order.push_back({Kind::weight_gradient, stage, weights++});
}

}  // namespace ddip::schedule
