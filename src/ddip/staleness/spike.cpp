// Spike compensation: a delayed gradient gets at once what momentum would have made of it in the meantime,
// w ← w − η(a·v + b·g) with a = γ^D, b = (1 − γ^D)/(1 − γ), D the stage's rounded mean staleness.
#include <cmath>

#include "ddip/staleness/policies.h"

namespace ddip::staleness {
namespace {

class Spike : public Policy {
 public:
  Needs needs(const Optimizer& /*optimizer*/) const override { return {.weights_before_step = true, .step = true}; }

  void after_step(Optimizer& optimizer, const Step& step) override {
    const double delay = std::floor(step.mean_staleness + 0.5);
    if (delay == 0 || !optimizer.velocity.defined()) return;  // nothing has moved
    at::NoGradGuard no_grad;
    for (size_t index = 0; index < optimizer.groups.size(); ++index) {
      const Group& group = optimizer.groups[index];
      const double a = std::pow(group.momentum, delay), b = (1.0 - a) / (1.0 - group.momentum);
      const at::Tensor before = slice_of(step.weights_before, group);
      at::Tensor gradient = slice_of(step.gradient, group), weights = slice_of(optimizer.weights, group);
      if (group.maximize) gradient = gradient.neg();
      if (group.weight_decay != 0) gradient = gradient.add(before, group.weight_decay);
      const at::Tensor change = slice_of(optimizer.velocity, group).mul(a).add_(gradient, b);
      at::add_out(weights, before, change, -step.rates[index]);
    }
  }
};

}  // namespace

std::unique_ptr<Policy> make_spike() { return std::make_unique<Spike>(); }

}  // namespace ddip::staleness
