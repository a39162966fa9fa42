#include "ddip/pipeline/versions.h"

#include <cmath>
#include <limits>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/pipeline/random.h"

namespace ddip::pipeline {

// Labels of predictions lie above those of versions.
constexpr int64_t kPredictions = int64_t{1} << 48;

Versions::Versions(std::shared_ptr<Weights> weights, std::shared_ptr<staleness::Policy> policy, Asks asks, int stage,
                   int stages)
    : weights_(std::move(weights)),
      policy_(std::move(policy)),
      needs_(policy_->needs(asks.optimizer())),
      asks_(std::move(asks)),
      stage_(stage),
      stages_(stages),
      next_label_(kPredictions) {}

void Versions::begin(Run run) {
  first_ = version_;
  needs_ = policy_->needs(asks_.optimizer());          // somebody may have changed its options
  if (summed_.empty()) weights_->gradients().clear();  // of somebody's own backward between two runs
  expected_.clear();
  for (int64_t version : run.reads) ++expected_[first_ + version];
  last_ = {};  // somebody may have changed the rates
  run.reads = {};
  run_ = std::move(run);
  if (run_.smoothing_radius > 0) needs_.stash = true;
}

staleness::Moment Versions::moment(int64_t micro_batch, int staleness) {
  staleness::Moment now{.micro_batch = micro_batch,
                        .version = version_,
                        .staleness = staleness,
                        .rates = asks_.rates(std::max(staleness, 1)),
                        .accumulate = run_.accumulate,
                        .stage = stage_,
                        .stages = stages_,
                        .mean_staleness = run_.mean_staleness};
  // A gradient that is not finite would make such a prediction, and what it predicts such a gradient, for ever.
  if (needs_.pending && !summed_.empty() && count_ > 0 && (!run_.scales_loss || sum_is_finite())) {
    now.pending = weights_->gradients().flat();
    now.pending_micro_batches = static_cast<int64_t>(summed_.size());
    now.pending_samples = count_ * loss_scale_;
  }
  return now;
}

bool Versions::sum_is_finite() {
  if (!sum_is_finite_) sum_is_finite_ = std::isfinite(norm());
  return *sum_is_finite_;
}

at::Tensor Versions::spare() {
  if (spares_.empty())
    return at::zeros_like(weights_->truth());  // a policy leaves the gaps between parameters as they are
  at::Tensor found = spares_.back();
  spares_.pop_back();
  return found;
}

void Versions::release(int64_t label) {
  auto kept = kept_.find(label);
  if (kept != kept_.end() && --kept->second.uses == 0) {
    spares_.push_back(kept->second.weights);
    kept_.erase(kept);
  }
  auto version = in_use_.find(label);
  if (version != in_use_.end() && --version->second == 0) in_use_.erase(version);
}

at::Tensor& Versions::prediction() {
  if (!prediction_.defined()) prediction_ = at::zeros_like(weights_->truth());
  return prediction_;
}

const Used& Versions::predict(int64_t micro_batch, int staleness) {
  const Used& used = last_.used;
  const bool is_there = !used.predicted || !needs_.stash || kept_.contains(used.label);
  if (needs_.steady && last_.version == version_ && used.staleness == staleness && is_there) return used;
  staleness::Moment now = moment(micro_batch, staleness);
  last_ = {version_, Used{.label = version_, .version = version_, .staleness = staleness}};
  at::Tensor out = needs_.stash ? spare() : prediction();
  if (policy_->before_forward(asks_.optimizer(), now, out)) {
    last_.used.predicted = true;
    last_.used.label = next_label_++;
    last_.used.rates = now.rates;
    if (now.pending.defined()) last_.used.pending = summed_;
    if (needs_.stash) kept_[last_.used.label] = Kept{out, 0};
  } else if (needs_.stash) {
    spares_.push_back(out);
  }
  return used;
}

// The true weights and noise, for one micro-batch alone.
Used Versions::perturb(int64_t micro_batch) {
  Used used{.label = next_label_++, .version = version_, .predicted = true};
  at::Tensor out = spare().copy_(weights_->truth());
  const OwnRandomNumbers numbers(seed_of(run_.seed, stages_ + stage_, run_.first_micro_batch + micro_batch),
                                 out.device());
  for (const at::Tensor& slice : weights_->slices(out))
    slice.add_(at::randn(slice.sizes(), out.options()), run_.smoothing_radius);
  kept_[used.label] = Kept{out, 0};
  return used;
}

Used Versions::before_forward(int64_t micro_batch, int64_t version, int staleness) {
  at::NoGradGuard quiet;
  version += first_;
  Used used{.label = version, .version = version, .staleness = staleness};
  if (auto left = expected_.find(version); left != expected_.end() && --left->second == 0) expected_.erase(left);
  if (run_.smoothing_radius > 0)
    used = perturb(micro_batch);
  else if (needs_.forward_weights && weights_->apart() && version == version_)
    used = predict(micro_batch, staleness);
  if (used.predicted && needs_.stash) {
    Kept& kept = kept_.at(used.label);
    ++kept.uses;
    weights_->show(kept.weights);
  } else if (used.predicted) {
    weights_->show(prediction_);
  } else if (version < version_) {  // kept for us: its use passes from what was expected to this flight
    DDIP_CHECK(kept_.contains(version), "a version that a forward will read is kept");
    weights_->show(kept_[version].weights);
  } else {
    weights_->show_truth();
    if (needs_.stash) ++in_use_[version_];
  }
  return used;
}

void Versions::skip(int64_t version) {
  version += first_;
  auto left = expected_.find(version);
  if (left == expected_.end()) return;
  if (--left->second == 0) expected_.erase(left);
  if (version < version_) release(version);  // it was kept for this one, too
}

ReadBack Versions::before_backward(int64_t micro_batch, const Used& used) {
  at::NoGradGuard quiet;
  ReadBack read{.version = version_};
  bool written = false;
  if (needs_.backward_weights && weights_->apart()) {
    staleness::Moment now = moment(micro_batch, 0);
    last_ = {};  // it is overwritten
    written = policy_->before_backward(asks_.optimizer(), now, prediction());
    if (written) read.rates = now.rates;
  }
  auto kept = kept_.find(used.label);
  DDIP_CHECK(written || !needs_.stash || kept != kept_.end() || used.label == version_,
             "what a backward reads is kept");
  if (written)
    weights_->show(prediction_);
  else if (kept != kept_.end())
    weights_->show(kept->second.weights);
  else
    weights_->show_truth();
  if (needs_.own_gradient && !summed_.empty()) {
    if (!before_backward_.defined()) before_backward_ = at::empty_like(weights_->truth());
    before_backward_.copy_(weights_->gradients().flat());
    weights_->gradients().set_aside();
  }
  if (written)
    read.from = ReadBack::From::policy;
  else if (needs_.stash)
    read.from = ReadBack::From::forward;
  return read;
}

void Versions::after_backward(int64_t micro_batch, const Used& used, double count, double loss_scale) {
  at::NoGradGuard quiet;
  scale(loss_scale);
  sum_is_finite_.reset();
  if (needs_.own_gradient) {
    auto kept = kept_.find(used.label);
    const at::Tensor& with = kept == kept_.end() ? weights_->truth() : kept->second.weights;
    at::Tensor gradient = weights_->gradients().flat();
    policy_->after_backward(asks_.optimizer(), with, gradient);
    // sum + gradient, in this order of the operands' places: addition does not mind
    if (!summed_.empty()) gradient.add_(before_backward_);
  }
  summed_.push_back(micro_batch);
  count_ += count;
  forget(used);
}

void Versions::scale(double loss_scale) {
  if (!summed_.empty() && loss_scale != loss_scale_)
    throw ConfigError(
        "the plan steps with other micro-batches on this stage than on the last one; with a scaled loss expected the "
        "same");
  loss_scale_ = loss_scale;
}

void Versions::forget(const Used& used) { release(used.label); }

void Versions::keep_truth() {
  int uses = 0;
  if (auto flying = in_use_.find(version_); flying != in_use_.end()) uses += flying->second;
  if (auto later = expected_.find(version_); later != expected_.end()) uses += later->second;
  in_use_.erase(version_);
  if (uses == 0) return;
  Kept kept{spare(), uses};
  kept.weights.copy_(weights_->truth());
  kept_[version_] = kept;
}

Counts Versions::summed() {
  weights_->gradients().flat();  // sees who was reached
  return {.count = count_,
          .micro_batches = static_cast<int64_t>(summed_.size()),
          .loss_scale = loss_scale_,
          .reached = weights_->gradients().reached()};
}

void Versions::divide(double count) {
  at::NoGradGuard quiet;
  if (count > 0) weights_->gradients().flat().div_(count * loss_scale_);
}

double Versions::norm() {
  at::NoGradGuard quiet;
  return at::linalg_vector_norm(weights_->gradients().flat()).item<double>();
}

void Versions::limit_gradients(double scale) {
  if (std::isnan(scale)) {
    // As torch does, and always the same NaN: a product's depends on the order of its factors.
    for (const at::Tensor& place : weights_->gradients().places())
      place.fill_(std::numeric_limits<double>::quiet_NaN());
  } else if (scale < 1) {
    weights_->gradients().flat().mul_(scale);
  }
}

Versions::Stepped Versions::step(const Counts& all, const Limit& limit, int64_t full) {
  at::NoGradGuard quiet;
  Stepped done{.micro_batches = summed_,
               .count = all.count,
               .norm = limit.norm,
               .scale = limit.scale,
               .left_out = limit.leave_out};
  // Who still needs the weights of before gets a copy now; until now the true ones were enough.
  keep_truth();
  if (all.count > 0 && !limit.leave_out) {
    limit_gradients(limit.scale);
    staleness::Step step{.gradient = weights_->gradients().flat(), .mean_staleness = run_.mean_staleness};
    for (const auto& rates : asks_.rates(1)) {
      double rate = rates[0];
      if (all.micro_batches < full) rate = rate * static_cast<double>(all.micro_batches) / static_cast<double>(full);
      step.rates.push_back(rate);
    }
    if (needs_.weights_before_step) step.weights_before = weights_->truth().clone();
    if (needs_.step) policy_->before_step(asks_.optimizer(), step);
    asks_.step(step.rates);
    if (needs_.step) after_step(step);
    if (asks_.stepped) asks_.stepped();
    done.rates = step.rates;
  }
  weights_->gradients().clear();
  summed_.clear();
  sum_is_finite_.reset();
  count_ = 0;
  ++version_;
  return done;
}

// A policy may move all weights (spike does): not those that the optimizer has left as they were.
void Versions::after_step(const staleness::Step& step) {
  const std::vector<size_t> unreached = weights_->unreached();
  std::vector<at::Tensor> places, as_they_were;
  if (!unreached.empty()) places = weights_->slices(weights_->truth());
  for (size_t i : unreached) as_they_were.push_back(places[i].clone());
  staleness::Optimizer after = asks_.optimizer();
  policy_->after_step(after, step);
  for (size_t i = 0; i < unreached.size(); ++i) places[unreached[i]].copy_(as_they_were[i]);
}

void Versions::reset() {
  at::NoGradGuard quiet;
  for (auto& [label, kept] : kept_) spares_.push_back(kept.weights);
  kept_.clear();
  in_use_.clear();
  expected_.clear();
  summed_.clear();
  sum_is_finite_.reset();
  count_ = 0;
  last_ = {};
  weights_->gradients().clear();
  settle();
}

void Versions::restore(int64_t version) { version_ = version; }

}  // namespace ddip::pipeline
