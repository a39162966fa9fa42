#include "ddip/pipeline/gaps.h"

#include "ddip/staleness/gap_figures.h"

namespace ddip::pipeline {

void Gaps::begin() { *this = Gaps(); }

void Gaps::forward(int64_t micro_batch, const Used& used, const Weights& weights) {
  if (used.label != last_label_) {
    last_.used = weights.seen().clone();
    last_.read = used.predicted ? weights.truth().clone() : last_.used;
    last_label_ = used.label;
  }
  flights_[micro_batch] = last_;
}

void Gaps::backward(int64_t micro_batch, const Weights& weights) {
  auto flight = flights_.find(micro_batch);
  if (flight == flights_.end()) return;
  const auto [moved, error] = staleness::gap_figures(flight->second.read, flight->second.used, weights.truth());
  flights_.erase(flight);
  ++count_;
  moved_ += moved;
  if (moved == 0) return;
  ++that_moved_;
  error_ += error;
}

void Gaps::end() {
  flights_.clear();
  last_ = {};
  last_label_ = -1;
}

Gaps::Means Gaps::means() const {
  return {.moved = count_ > 0 ? moved_ / static_cast<double>(count_) : 0,
          .error = that_moved_ > 0 ? error_ / static_cast<double>(that_moved_) : 0};
}

}  // namespace ddip::pipeline
