// Element-wise updates in one pass over memory, in fp32: on CPU by our own vector code, in as many threads as torch
// has, on a GPU by kernels of our own; anywhere else by the torch operations that each comment names. On a
// CPU all give the same bits as those operations (tests/test_staleness.py), on a GPU the same but for two units in the
// last place (tests/test_gpu_predictions.py). Every tensor is flat, of one length, type and device; `out` overlaps
// nothing; a term whose coefficient is 0 or whose tensor is undefined is left out.
#pragma once

#include <string>
#include <vector>

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

// For each step: w.mul_(kept); before = w; denominator = nearest_root(u).mul_(root).add_(eps);
// if through_moments: m = torch.mul(m, first).add_(w, alpha=decay), in the first step .add_(φ, alpha=pending);
// if moves_by_gradient: w.addcdiv_(before, denominator, value=gradient); w.addcdiv_(m, denominator, value=moment).
struct AdaptiveSteps {
  struct One {
    double kept, root, moment, gradient;
  };
  std::vector<One> steps;
  double eps, first, decay, pending;
  bool through_moments, moves_by_gradient;
};
void fused_steps(at::Tensor& out, const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
                 const at::Tensor& pending, const AdaptiveSteps& by);

// gradient /= torch.sub(now, used).abs_().div_(unit).add_(1)
void fused_gap(at::Tensor& gradient, const at::Tensor& now, const at::Tensor& used, const at::Tensor& unit);

// Why it is torch's operations that serve this tensor; empty where it is code of our own. For tests and benchmarks.
std::string why_unfused(const at::Tensor& tensor);
bool runs_fused(const at::Tensor& tensor);

}  // namespace ddip::staleness
