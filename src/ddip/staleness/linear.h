// Predictions for SGD: sums of multiples, ŵ = A·w + B·v + C·φ, with A, B, C per parameter group. The coefficients are
// doubles, rounded once to the tensors' type when they meet a tensor.
#pragma once

#include <functional>

#include "ddip/staleness/policy.h"

namespace ddip::staleness {

struct Coefficients {
  double weights = 1, velocity = 0, pending = 0;
};

// η_k of this group, k = 1, 2, …. Throws ConfigError if the caller gave too few.
double rate_of(const Moment& moment, size_t group, int k);

// What φ weighs in the STEP that it is a part of: s = ±(its micro-batches) / (micro-batches of a STEP · its samples),
// minus if the group maximizes; 0 without φ. The micro-batches still to come count as zeros.
double pending_weight(const Group& group, const Moment& moment);

// Zero future gradients without weight decay: p ← pγ, c ← c + η_k p for k = 1..n; ŵ = w − c·v.
// nesterov: c + η_k(pγ). Sutskever: without η_k.
Coefficients momentum_coefficients(const Optimizer& optimizer, const Moment& moment, size_t group);

// n whole steps of SGD with the gradient s·φ in the first and zero in the others: weight decay, dampening, nesterov and
// torch's undampened first step included. φ counts only if `with_pending`.
Coefficients step_coefficients(const Optimizer& optimizer, const Moment& moment, size_t group, bool with_pending);

// Writes ŵ of all groups and returns true, or false where no group has anything to add to w. A tensor that is not
// defined, or whose coefficient is 0, is left out.
using CoefficientsOf = std::function<Coefficients(size_t group)>;
bool write_linear(const Optimizer& optimizer, const at::Tensor& pending, const CoefficientsOf& of, at::Tensor& out);

}  // namespace ddip::staleness
