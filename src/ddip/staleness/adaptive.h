// Predictions for Adam, AdamW and NAdam: n steps on with zero future gradients. The second moment stays as it is now
// (its root is the slow part), unless asked to decay as it really would.
#pragma once

#include "ddip/staleness/linear.h"

namespace ddip::staleness {

struct AdaptiveOptions {
  bool second_decays = false;  // u·β₂^k: equals n real steps with a gradient of zero, at n times the cost
  bool with_pending =
      false;  // the first step has the gradient s·φ in its first moment (then the second stays as it is)
};

// What step t+k moves the weights by, as a multiple of m̂/(√û+ε); NAdam also moves them by its plain gradient.
struct AdaptiveStep {
  double moment;    // Adam: η_k/(1−β₁^{t+k}); NAdam: η_k μ_{t+k+1}/(1−Π_{i≤t+k+1} μ_i)
  double gradient;  // NAdam: η_k(1−μ_{t+k})/(1−Π_{i≤t+k} μ_i); else 0
};
std::vector<AdaptiveStep> adaptive_steps(const Optimizer& optimizer, const Moment& moment, size_t group);

// Writes ŵ of all groups. REQUIRES: optimizer.steps > 0.
void write_adaptive(const Optimizer& optimizer, const Moment& moment, const AdaptiveOptions& options, at::Tensor& out);

}  // namespace ddip::staleness
