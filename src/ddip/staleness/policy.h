// What to do about stale weights. One stage has one policy; the executor calls it around each forward, backward and
// STEP. A policy of your own is one class with the calls that it cares about (docs/staleness.md).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ddip/staleness/optimizer.h"

namespace ddip::staleness {

// Where a stage stands when it asks for the weights of one forward or backward.
struct Moment {
  int64_t micro_batch = 0;
  int64_t version = 0;  // STEPs that this stage has done
  int staleness = 0;    // n: STEPs from now until this micro-batch's gradient is used; 0 in a backward
  // η_1..η_n of each group: η_1 is the rate of the next STEP, then the scheduler's. At least one each.
  std::vector<std::vector<double>> rates;
  at::Tensor pending;                 // φ: gradients added up since the last STEP, raw; undefined if there are none
  int64_t pending_micro_batches = 0;  // in φ
  double pending_samples = 0;         // in φ, or what else the loss counts
  double loss_scale = 1;              // in φ
  int accumulate = 1;                 // se: micro-batches of one STEP
  int stage = 0, stages = 1;          // this stage's number, from 0, and how many there are
  double mean_staleness = 0;          // of this stage over the run
};

// One STEP of the optimizer, before or after it.
struct Step {
  std::vector<double> rates;  // of each group, for this STEP only; before_step may change them
  at::Tensor gradient;        // what the optimizer gets: divided and clipped
  at::Tensor weights_before;  // in after_step, if needs() asks for it
  double mean_staleness = 0;  // of this stage over the run
};

// What the executor has to keep or to make for a policy. What is not asked for costs nothing.
struct Needs {
  bool forward_weights = false;      // before_forward may write weights
  bool steady = false;               // before_forward writes the same until the next STEP, at equal staleness
  bool backward_weights = false;     // before_backward may write weights
  bool stash = false;                // the backward uses the weights of its forward
  bool pending = false;              // reads φ
  bool own_gradient = false;         // after_backward sees each micro-batch's gradient before it is added to the others
  bool weights_before_step = false;  // a copy of the weights from before each STEP
  bool step = false;                 // before_step or after_step does something
};

// What a policy carries from step to step, by name.
using State = std::map<std::string, at::Tensor>;

class Policy {
 public:
  virtual ~Policy() = default;
  virtual Needs needs(const Optimizer& optimizer) const = 0;

  // Writes the weights to use into `out` (flat, as large as the weights) and returns true; or returns false: the newest
  // true weights, or in a backward with a stash those of its forward. Writes nothing else.
  virtual bool before_forward(const Optimizer& /*optimizer*/, const Moment& /*moment*/, at::Tensor& /*out*/) {
    return false;
  }
  virtual bool before_backward(const Optimizer& /*optimizer*/, const Moment& /*moment*/, at::Tensor& /*out*/) {
    return false;
  }

  // May change this one micro-batch's gradient, which was computed with the weights `used`.
  virtual void after_backward(const Optimizer& /*optimizer*/, const at::Tensor& /*used*/, at::Tensor& /*gradient*/) {}

  // May change step.rates.
  virtual void before_step(const Optimizer& /*optimizer*/, Step& /*step*/) {}
  // Sees the optimizer after its step, and may change its weights.
  virtual void after_step(Optimizer& /*optimizer*/, const Step& /*step*/) {}

  // For checkpoints: load_state gets what state gave.
  virtual State state() const { return {}; }
  virtual void load_state(const State& /*state*/) {}
};

}  // namespace ddip::staleness
