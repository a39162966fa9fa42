// Which weights a stage computes with: asks the policy before each forward and backward, keeps what a backward will
// need again, and steps the true ones.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "ddip/pipeline/replica_sum.h"
#include "ddip/pipeline/weights.h"
#include "ddip/staleness/policy.h"

namespace ddip::pipeline {

// What a forward used, until its backward has used it too.
struct Used {
  int64_t label = 0;    // of the weights; a true version is its own label
  int64_t version = 0;  // true version when it was asked
  int staleness = 0;
  bool predicted = false;
  std::vector<std::vector<double>> rates;  // of the prediction
  std::vector<int64_t> pending;            // micro-batches in φ
};

// What a backward used.
struct ReadBack {
  enum class From {
    forward,
    truth,
    policy
  } from = From::truth;                    // what the forward used; the newest; what the policy wrote
  int64_t version = 0;                     // the newest at that moment
  std::vector<std::vector<double>> rates;  // if the policy wrote
};

class Versions {
 public:
  struct Asks {
    std::function<staleness::Optimizer()> optimizer;                   // as it is now
    std::function<std::vector<std::vector<double>>(int steps)> rates;  // of each group, the next steps'
    std::function<void(const std::vector<double>& rates)> step;        // the optimizer, once, with these rates
    std::function<void()> stepped;                                     // told when the policy is done with the step too
  };
  // `stage` of `stages`; `mean_staleness` under the plan.
  Versions(std::shared_ptr<Weights> weights, std::shared_ptr<staleness::Policy> policy, Asks asks, int stage,
           int stages);

  struct Run {
    std::vector<int64_t> reads;  // versions, from the run's beginning on, that its forwards read, one entry each
    double mean_staleness = 0;
    int accumulate = 1;
    bool scales_loss = false;  // gradients may be too large, and are of no use then
    // Of the noise on each forward's weights, which its backward uses too; 0: none.
    double smoothing_radius = 0;
    uint64_t seed = 0;              // of that noise, with
    int64_t first_micro_batch = 0;  // the number of this run's first one
  };
  // What a run will ask for.
  void begin(Run run);

  // `version`: the one to read, from the run's beginning on.
  Used before_forward(int64_t micro_batch, int64_t version, int staleness);
  // A forward that will not come after all: its micro-batch is empty.
  void skip(int64_t version);
  ReadBack before_backward(int64_t micro_batch, const Used& used);
  // The micro-batch's gradients are in the sum; its weights are not needed any more. `count`: samples, or what the loss
  // was a sum over, `loss_scale`: what that was multiplied by, the same for all micro-batches of a step.
  void after_backward(int64_t micro_batch, const Used& used, double count, double loss_scale = 1);
  // The same of a micro-batch without samples.
  void scale(double loss_scale);
  // Whether after_backward may come later than the backward, with others between them.
  bool may_sum_later() const { return !weights_->apart() && !needs_.own_gradient; }
  // A micro-batch whose backward will not come (evaluation, failure).
  void forget(const Used& used);

  // What has been summed since the last step, here alone; the caller sums it over replicas.
  Counts summed();
  // Makes a mean of the sum, without the loss's scale. `count`: what it is a sum over, of all replicas.
  void divide(double count);
  double norm();                                       // of the mean
  int64_t steps() const { return version_ - first_; }  // in this run

  struct Stepped {
    std::vector<int64_t> micro_batches;
    double count = 0;
    double norm = 0;   // that was limited; 0: not asked for
    double scale = 1;  // that the limit made of it
    bool left_out = false;
    std::vector<double> rates;
  };
  struct Limit {
    double norm = 0, scale = 1;
    bool leave_out = false;  // the weights stay as they are
  };
  // With the mean. A parameter that no gradient has come to stays as it is. `all`: of all replicas; `full`:
  // micro-batches of a full step, one of fewer has a smaller rate; 0: any number is a full step.
  Stepped step(const Counts& all, const Limit& limit, int64_t full);

  // The module computes with the newest true weights, as for evaluation and for anybody who looks at it.
  void settle() { weights_->show_truth(); }
  // After a failure: nothing is in flight, no gradient is left.
  void reset();
  // After a saved state was loaded, between runs.
  void restore(int64_t version);

  int64_t version() const { return version_; }
  Weights& weights() { return *weights_; }
  staleness::Policy& policy() { return *policy_; }
  int64_t kept() const { return static_cast<int64_t>(kept_.size()); }  // copies of weights that flights need
  bool predicts() const { return prediction_.defined(); }              // in memory of its own beside those

 private:
  struct Kept {
    at::Tensor weights;
    int uses = 0;
  };
  // What was predicted last: good until the next step, at the same staleness, if the policy says so.
  struct Prediction {
    int64_t version = -1;
    Used used;  // predicted: false if the policy had nothing to say
  };
  staleness::Moment moment(int64_t micro_batch, int staleness);
  const Used& predict(int64_t micro_batch, int staleness);
  Used perturb(int64_t micro_batch);
  at::Tensor& prediction();
  bool sum_is_finite();
  void limit_gradients(double scale);
  void after_step(const staleness::Step& step);
  at::Tensor spare();
  void release(int64_t label);
  void keep_truth();

  const std::shared_ptr<Weights> weights_;
  const std::shared_ptr<staleness::Policy> policy_;
  staleness::Needs needs_;
  const Asks asks_;
  const int stage_;
  const int stages_;
  Run run_;
  int64_t version_ = 0;
  int64_t next_label_;
  Prediction last_;
  at::Tensor prediction_;            // where predictions are written that no backward needs
  std::map<int64_t, Kept> kept_;     // by label
  std::map<int64_t, int> in_use_;    // true versions that flights will want again
  std::map<int64_t, int> expected_;  // true versions that forwards of this run will read
  int64_t first_ = 0;                // version at the run's beginning
  std::vector<at::Tensor> spares_;
  std::vector<int64_t> summed_;  // micro-batches in the gradient since the last step
  double count_ = 0;
  double loss_scale_ = 1;              // of these
  std::optional<bool> sum_is_finite_;  // of these, once somebody has looked
  at::Tensor before_backward_;  // the sum before this micro-batch's gradient, where the policy wants that one alone
};

}  // namespace ddip::pipeline
