// The policies, one file each. make_policy (make_policy.h) finds them by name.
#pragma once

#include <memory>
#include <vector>

#include "ddip/staleness/policy.h"

namespace ddip::staleness {

struct PipemareOptions {
  int64_t annealing_steps = 0;  // K: steps until the rate is the scheduler's again
  double decay = 0.135;         // D: what is left of an old change of weights after the stage's delay
};
struct GapOptions {
  double decay = 0.999;  // Γ, for SGD; Adam's is its β₂
  double eps = 1e-8;
};

std::unique_ptr<Policy> make_none();
std::unique_ptr<Policy> make_stash();
std::unique_ptr<Policy> make_msnag();
std::unique_ptr<Policy> make_aggmsnag();
std::unique_ptr<Policy> make_lwp();
std::unique_ptr<Policy> make_spectrain();
// adam, adamw and nadam: which of them is the optimizer's rule.
std::unique_ptr<Policy> make_adaptive(bool second_decays);
std::unique_ptr<Policy> make_pipemare(const PipemareOptions& options);
std::unique_ptr<Policy> make_spike();
std::unique_ptr<Policy> make_gap_aware(const GapOptions& options);
// Several at once: the first that has weights to give gives them, every one sees gradients and steps.
std::unique_ptr<Policy> make_combined(std::vector<std::unique_ptr<Policy>> parts);

}  // namespace ddip::staleness
