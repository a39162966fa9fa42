// Linear weight prediction: n times the last change, ŵ = w − v·Σ η_k.
#include "ddip/staleness/linear.h"
#include "ddip/staleness/policies.h"

namespace ddip::staleness {
namespace {

class Lwp : public Policy {
 public:
  Needs needs(const Optimizer& /*optimizer*/) const override { return {.forward_weights = true, .steady = true}; }

  bool before_forward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    if (moment.staleness == 0) return false;
    auto coefficients = [&](size_t group) {
      double sum = 0;
      for (int k = 1; k <= moment.staleness; ++k)
        sum = sum + (optimizer.rule == Rule::sutskever ? 1 : rate_of(moment, group, k));
      return Coefficients{.velocity = -sum};
    };
    return write_linear(optimizer, {}, coefficients, out);
  }
};

}  // namespace

std::unique_ptr<Policy> make_lwp() { return std::make_unique<Lwp>(); }

}  // namespace ddip::staleness
