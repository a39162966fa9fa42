// Multi-step Nesterov: the weights as momentum alone (and weight decay) will have moved them after the n steps to come.
#include "ddip/staleness/linear.h"
#include "ddip/staleness/policies.h"

namespace ddip::staleness {
namespace {

class Msnag : public Policy {
 public:
  Needs needs(const Optimizer& /*optimizer*/) const override { return {.forward_weights = true, .steady = true}; }

  bool before_forward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    if (moment.staleness == 0) return false;
    auto coefficients = [&](size_t group) {
      // Decay moves the weights too: then they have a coefficient of their own.
      return optimizer.groups[group].weight_decay == 0 ? momentum_coefficients(optimizer, moment, group)
                                                       : step_coefficients(optimizer, moment, group, false);
    };
    return write_linear(optimizer, {}, coefficients, out);
  }
};

}  // namespace

std::unique_ptr<Policy> make_msnag() { return std::make_unique<Msnag>(); }

}  // namespace ddip::staleness
