// Forward while it is not more than the window ahead of the backwards, else backward. A segment of one batch makes it
// the synchronous 1F1B with a flush, a segment of the whole run the asynchronous one without.
#include "ddip/schedule/orders/order.h"

namespace ddip::schedule {

void append_1f1b(Order& order, int stage, const Segment& segment, int window) {
  int64_t forwards = segment.begin, backwards = segment.begin;
  while (backwards < segment.end) {
    if (forwards < segment.end && forwards - backwards <= window)
      order.push_back({Kind::forward, stage, forwards++});
    else
      order.push_back({Kind::backward, stage, backwards++});
  }
}

}  // namespace ddip::schedule
