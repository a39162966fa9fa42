// Multi-step Nesterov that also knows the part of the next step's gradient that is there already (φ).
#include "ddip/staleness/adaptive.h"
#include "ddip/staleness/policies.h"

namespace ddip::staleness {
namespace {

class Aggmsnag : public Policy {
 public:
  Needs needs(const Optimizer& /*optimizer*/) const override { return {.forward_weights = true, .pending = true}; }

  bool before_forward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    if (moment.staleness == 0) return false;
    if (!is_adaptive(optimizer.rule)) {
      auto coefficients = [&](size_t group) { return step_coefficients(optimizer, moment, group, true); };
      return write_linear(optimizer, moment.pending, coefficients, out);
    }
    if (!optimizer.velocity.defined()) return false;
    write_adaptive(optimizer, moment, {.with_pending = true}, out);
    return true;
  }
};

}  // namespace

std::unique_ptr<Policy> make_aggmsnag() { return std::make_unique<Aggmsnag>(); }

}  // namespace ddip::staleness
