// The kernels behind fused.h on GPUs, compiled at a device's first call (some tenths of a second). Where that cannot
// be, each call returns false and has done nothing. Tensors as fused.h has them, in fp32 on one GPU and contiguous.
#pragma once

#include <span>

#include "ddip/staleness/fused.h"

namespace ddip::staleness::cuda {

// Why there are no kernels on this GPU; empty where there are.
std::string obstacle(at::Device device);

bool linear(at::Tensor& out, const at::Tensor& weights, const at::Tensor& velocity, const at::Tensor& pending,
            const Coefficients& by);
bool adaptive(at::Tensor& out, const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
              const at::Tensor& pending, const AdaptiveCoefficients& by);
bool steps(at::Tensor& out, const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
           const at::Tensor& pending, const AdaptiveSteps& by);
bool gap(at::Tensor& gradient, const at::Tensor& now, const at::Tensor& used, const at::Tensor& unit);

// The text of the kernels and their names; below, what they take, field by field as the text has it.
const char* kernel_text();
const std::vector<std::string>& kernel_names();

// Fours of elements, each at a multiple of 16 bytes, after `head` single ones; none unless all of these pointers that
// are not null meet those multiples at the same elements.
struct Range {
  long long count, head, fours;
};
Range range_of(int64_t elements, std::span<const float* const> pointers);

// More steps than fit here are torch's.
constexpr int kMostSteps = 64;
struct Steps {
  struct One {
    float kept, root, moment, gradient;
  } steps[kMostSteps];
  float eps, first, decay, pending;
  int count, through_moments, moves_by_gradient;
};

}  // namespace ddip::staleness::cuda
