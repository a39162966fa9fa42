// adam, adamw, nadam: the weights as the optimizer's moments alone will have moved them after the n steps to come.
#include "ddip/staleness/adaptive.h"
#include "ddip/staleness/policies.h"

namespace ddip::staleness {
namespace {

class Adaptive : public Policy {
 public:
  explicit Adaptive(bool second_decays) : second_decays_(second_decays) {}
  Needs needs(const Optimizer& /*optimizer*/) const override { return {.forward_weights = true, .steady = true}; }

  bool before_forward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    if (moment.staleness == 0 || !optimizer.velocity.defined()) return false;
    write_adaptive(optimizer, moment, {.second_decays = second_decays_}, out);
    return true;
  }

 private:
  const bool second_decays_;
};

}  // namespace

std::unique_ptr<Policy> make_adaptive(bool second_decays) { return std::make_unique<Adaptive>(second_decays); }

}  // namespace ddip::staleness
