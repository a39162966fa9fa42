// Element-wise updates in one pass over memory. On CPU in fp32 by our own vector code, in as many threads as torch has;
// anywhere else by the torch operations that each comment names. Both give the same bits (tests/test_staleness.py).
// Every tensor is flat, of one length, type and device; `out` overlaps nothing; a term whose coefficient is 0 or whose
// tensor is undefined is left out.
#pragma once

#include "ddip/staleness/linear.h"

namespace ddip::staleness {

// torch.mul(w, A).add_(v, alpha=B).add_(φ, alpha=C)
void fused_linear(at::Tensor& out, const at::Tensor& weights, const at::Tensor& velocity, const at::Tensor& pending,
                  const Coefficients& coefficients);

// The root rounded to the nearest float. torch's own on CPU is MKL's, up to one unit off, and not the same on every
// processor. A double's root, rounded, is the nearest float for every float.
at::Tensor nearest_root(const at::Tensor& tensor);

// denominator = nearest_root(u).mul_(root).add_(eps); q = torch.mul(m, first).add_(φ, alpha=pending);
// torch.mul(w, weights).addcdiv_(q, denominator, value=moved)
struct AdaptiveCoefficients {
  double weights, moved, root, eps, first, pending;
};
void fused_adaptive(at::Tensor& out, const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
                    const at::Tensor& pending, const AdaptiveCoefficients& coefficients);

// gradient /= torch.sub(now, used).abs_().div_(unit).add_(1)
void fused_gap(at::Tensor& gradient, const at::Tensor& now, const at::Tensor& used, const at::Tensor& unit);

// Whether the vector code serves this tensor: for tests and benchmarks.
bool runs_fused(const at::Tensor& tensor);

}  // namespace ddip::staleness
