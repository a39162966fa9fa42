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

namespace {

Versions::Limit limit_of(std::optional<double> norm, double clip) {
  if (!norm) return {};
  // Of a norm that is no number the scale is none either: a stage alone must not step on as if nothing had been.
  return {.norm = *norm, .scale = std::isnan(*norm) ? *norm : std::min(1.0, clip / (*norm + 1e-6))};
}

Versions::Limit own_limit(const Stage& stage, double norm) {
  return limit_of(stage.clip > 0 ? norm : std::optional<double>(), stage.clip);
}

}  // namespace

void Executor::step(const Action& action, Done& done) {
  Stage& here = stage(action.stage);
  const int64_t number = steps_[here.index]++;
  Counts all;
  double norm = 0;
  if (here.versions) {
    all = here.versions->summed();
    if (arrangement_.replicas > 1) {
      Gradients& gradients = here.versions->weights().gradients();
      all = sum_over_replicas(ring_of(here), gradients.flat(), all, poll_);
      gradients.set_reached(all.reached);
    }
    here.versions->divide(all.count);
    if (norms_ || here.clip > 0) norm = here.versions->norm();
  }
  if (!norms_ || !tells(here)) return step(here, all, own_limit(here, norm), done);

  // What counts nothing is no step, and no sign of a scale that is too large.
  const double told = telling_.loss_scale && all.count == 0 ? 0 : norm;
  const bool complete = norms_->tell(number, told * told, poll_);
  if (norms_->delay() == 0) {
    waiting_.push_back({&here, all, norm, record_.size()});
    if (complete) step_waiting(*norms_->ask(number, poll_), done);
    return;
  }
  const std::optional<double> whole = norms_->ask(number, poll_);
  if (!telling_.loss_scale) {
    const Versions::Limit limit = whole ? limit_of(whole, here.clip) : limit_of(norm, here.clip * here.clip_share);
    return step(here, all, limit, done);
  }
  // What the others have is known too late: each stage leaves out what it cannot use itself.
  Versions::Limit limit = own_limit(here, norm);
  limit.leave_out = !std::isfinite(told);
  step(here, all, limit, done);
  if (here.loss) loss_scale_->stepped(whole ? std::optional(std::isfinite(*whole)) : std::nullopt);
}

// All stages of this rank, with what is known of those of all ranks.
void Executor::step_waiting(double whole, Done& done) {
  for (const Waiting& waiting : std::exchange(waiting_, {})) {
    const Stage& stage = *waiting.stage;
    Versions::Limit limit = telling_.global_norm ? limit_of(whole, stage.clip) : own_limit(stage, waiting.norm);
    limit.leave_out = telling_.loss_scale && !std::isfinite(whole);
    step(*waiting.stage, waiting.all, limit, done);
    if (waiting.place < record_.size()) record_.step_later(waiting.place, done.stepped);
    if (stage.loss && loss_scale_) loss_scale_->stepped(std::isfinite(whole));
  }
}

void Executor::step(Stage& here, const Counts& all, const Versions::Limit& limit, Done& done) {
  done.stepped = {};
  if (!here.versions) return;
  done.stepped = here.versions->step(all, limit, options_.step_size);
  done.count = done.stepped.count;
}

}  // namespace ddip::pipeline
