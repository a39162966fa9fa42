// An executor's step: the gradients of all replicas, limited, go into the weights.
#include <algorithm>
#include <cmath>

#include "ddip/pipeline/executor.h"

namespace ddip::pipeline {

using schedule::Action;

Ring Executor::ring_of(const Stage& stage) {
  Ring ring{.place = replica_, .members = arrangement_.replicas};
  if (arrangement_.replicas > 1) {
    ring.next = &senders_.at(wiring_.sum(stage.index, replica_));
    ring.previous = &receivers_.at(wiring_.sum_to(stage.index, replica_));
  }
  return ring;
}

void Executor::step(const Action& action, Done& done) {
  Stage& here = stage(action.stage);
  if (!here.versions) return;
  Counts all = here.versions->summed();
  if (arrangement_.replicas > 1) {
    Gradients& gradients = here.versions->weights().gradients();
    all = sum_over_replicas(ring_of(here), gradients.flat(), all, poll_);
    gradients.set_reached(all.reached);
  }
  here.versions->divide(all.count);
  if (!norms_) return step(here, all, here.clip > 0 ? here.versions->norm() : std::optional<double>(), here.clip, done);

  double norm = here.versions->norm();
  int64_t number = here.versions->steps();
  bool complete = norms_->tell(number, norm * norm, poll_);
  if (norms_->delay() > 0) {
    std::optional<double> whole = norms_->ask(number, poll_);
    return whole ? step(here, all, whole, here.clip, done) : step(here, all, norm, here.clip * here.clip_share, done);
  }
  waiting_.push_back({&here, all, record_.size()});
  if (!complete) return;
  std::optional<double> whole = norms_->ask(number, poll_);
  for (const Waiting& waiting : std::exchange(waiting_, {})) {
    step(*waiting.stage, waiting.all, whole, waiting.stage->clip, done);
    if (waiting.place < record_.size()) record_.step_later(waiting.place, done.stepped);
  }
}

void Executor::step(Stage& here, const Counts& all, std::optional<double> norm, double clip, Done& done) {
  Versions::Limit limit;
  // Of a norm that is no number the scale is none either: a stage alone must not step on as if nothing had been.
  if (norm) limit = {.norm = *norm, .scale = std::isnan(*norm) ? *norm : std::min(1.0, clip / (*norm + 1e-6))};
  done.stepped = here.versions->step(all, limit, options_.step_size);
  done.count = done.stepped.count;
}

}  // namespace ddip::pipeline
