// Zero bubble on the V: rank r holds stage r on the way down and its mirror on the way up, so the rank that begins also
// ends, and a micro-batch turns around on the last rank without a message. With equal times of forward, backward and
// weight gradient no rank waits between its first action and its last.
#include "ddip/schedule/orders/order.h"

namespace ddip::schedule {
namespace {

// One rank's counters: what comes next of each kind, on the way down and up.
class Filler {
 public:
  Filler(Order& order, int down, int up, int64_t begin) : order_(order), stages_{down, up}, next_{} {
    for (auto& kinds : next_)
      for (int64_t& next : kinds) next = begin;
  }

  enum Way { kDown = 0, kUp = 1 };

  void forward(Way way) { add(Kind::forward, way, 0); }
  void backward(Way way) { add(Kind::backward, way, 1); }
  void weights(Way way) { add(Kind::weight_gradient, way, 2); }
  int64_t forwards(Way way) const { return next_[way][0]; }
  int64_t weights_done(Way way) const { return next_[way][2]; }

 private:
  void add(Kind kind, Way way, int counter) { order_.push_back({kind, stages_[way], next_[way][counter]++}); }

  Order& order_;
  const int stages_[2];
  int64_t next_[2][3];
};

}  // namespace

bool zbv_fits(const Request& request, const Segment& segment) {
  return segment.end - segment.begin >= 2 * request.ranks() - 1;
}

void append_zbv(Order& order, const Request& request, int rank, const Segment& segment) {
  const int ranks = request.ranks();
  const int later = ranks - rank;
  Filler fill(order, rank, request.stages - 1 - rank, segment.begin);
  // Down until the first micro-batch is back from the turn.
  for (int count = 0; count < 2 * later - 1; ++count) fill.forward(Filler::kDown);
  for (int count = 0; count < rank; ++count) {
    fill.forward(Filler::kUp);
    fill.forward(Filler::kDown);
  }
  // The ranks further down have less to wait for: their first gradients come earlier.
  for (int count = 0; count < later; ++count) {
    fill.forward(Filler::kUp);
    fill.backward(Filler::kUp);
    fill.weights(Filler::kUp);
  }
  while (fill.forwards(Filler::kUp) < segment.end) {
    if (fill.forwards(Filler::kDown) < segment.end) fill.forward(Filler::kDown);
    fill.backward(Filler::kDown);
    fill.weights(Filler::kDown);
    fill.forward(Filler::kUp);
    fill.backward(Filler::kUp);
    fill.weights(Filler::kUp);
  }
  // Gradients go first while somebody waits for them; weight gradients fill the rest.
  for (int count = 0; count < rank; ++count) {
    fill.backward(Filler::kDown);
    fill.backward(Filler::kUp);
  }
  for (int count = 0; count < later; ++count) {
    fill.backward(Filler::kDown);
    fill.weights(Filler::kDown);
  }
  for (const auto way : {Filler::kUp, Filler::kDown})
    while (fill.weights_done(way) < segment.end) fill.weights(way);
}

}  // namespace ddip::schedule
