#include "ddip/schedule/segments.h"

#include <algorithm>

namespace ddip::schedule {
namespace {

bool synchronous_batch(const Request& request, int64_t batch) {
  return is_synchronous(request.schedule) || batch < request.warmup ||
         (request.switch_at >= 0 && batch >= request.switch_at);
}

bool drains_after(const Request& request, int64_t batch) {
  const int64_t next = batch + 1;
  if (next == request.batches) return true;
  return synchronous_batch(request, batch) != synchronous_batch(request, next) ||
         (request.flush_every > 0 && next % request.flush_every == 0);
}

}  // namespace

std::vector<Segment> segments(const Request& request) {
  std::vector<Segment> found;
  int64_t begin = 0;
  for (int64_t batch = 0; batch < request.batches; ++batch) {
    const bool synchronous = synchronous_batch(request, batch);
    const bool drains = drains_after(request, batch);
    if (!synchronous && !drains) continue;
    const int64_t end = std::min((batch + 1) * request.micro_batches, request.total());
    found.push_back({begin, end, synchronous, drains});
    begin = end;
  }
  return found;
}

std::vector<int64_t> step_ends(const Request& request) {
  std::vector<int64_t> ends;
  int64_t done = 0, batches = 0;
  for (const Segment& segment : segments(request)) {
    if (!segment.synchronous)
      while (done + request.accumulate < segment.end) ends.push_back(done += request.accumulate);
    // A synchronous phase of an asynchronous schedule steps at the first end of a batch with enough micro-batches.
    ++batches;
    const bool enough =
        is_synchronous(request.schedule) ? batches == request.accumulate : segment.end - done >= request.accumulate;
    if (!enough && !segment.drains) continue;
    ends.push_back(done = segment.end);
    batches = 0;
  }
  return ends;
}

}  // namespace ddip::schedule
