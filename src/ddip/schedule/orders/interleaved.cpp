// Each rank holds several stages, stage i on rank i modulo the ranks, and passes micro-batches through them in groups
// of as many as there are ranks. The pipe is filled after one short stage instead of one long one.
#include <algorithm>

#include "ddip/schedule/orders/order.h"

namespace ddip::schedule {

void append_interleaved(Order& order, const Request& request, int rank, const Segment& segment) {
  const int ranks = request.ranks();
  const int chunks = request.stages / ranks;  // stages of a rank
  const int64_t all = (segment.end - segment.begin) * chunks;
  const auto work = [&](Kind kind, int64_t index) {
    const int64_t group = index / (ranks * chunks), within = index % (ranks * chunks);
    auto chunk = static_cast<int>(within / ranks);
    if (kind == Kind::backward) chunk = chunks - 1 - chunk;
    return Work{kind, chunk * ranks + rank, segment.begin + group * ranks + within % ranks};
  };
  // The last stage's first backward needs all chunks of the first group; every rank before the last is two messages
  // (there and back) further from it.
  const int64_t ahead = std::min<int64_t>(all, (ranks - 1 - rank) * 2 + (chunks - 1) * ranks);
  int64_t forwards = 0;
  while (forwards < ahead) order.push_back(work(Kind::forward, forwards++));
  for (int64_t backwards = 0; backwards < all; ++backwards) {
    if (forwards < all) order.push_back(work(Kind::forward, forwards++));
    order.push_back(work(Kind::backward, backwards));
  }
}

}  // namespace ddip::schedule
