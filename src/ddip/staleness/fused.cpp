#include "ddip/staleness/fused.h"

#include <ATen/TensorIterator.h>

#include "ddip/base/error.h"
#include "ddip/staleness/fused_cuda.h"
#include "ddip/staleness/fused_kernels.h"

namespace ddip::staleness {
namespace {

// A thread's least share of the work: torch's own.
constexpr int64_t kGrain = 32768;
// From here on the result would only push other things out of the caches.
constexpr int64_t kStreamingFrom = int64_t{1} << 20;

// What the rule "a coefficient of 0 leaves its term out" makes of a tensor.
at::Tensor term(const at::Tensor& tensor, double coefficient) { return coefficient == 0 ? at::Tensor() : tensor; }

#ifdef DDIP_HAS_AVX2_KERNELS
bool processor_can() {
  static const bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return can;
}

const float* floats(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (!tensor.is_cpu() || !tensor.is_contiguous() || tensor.scalar_type() != at::kFloat)
    throw ConfigError("a stage's flat tensors are of one type, on one device and contiguous; one of these is not");
  return tensor.const_data_ptr<float>();
}

// In torch's threads. at::parallel_for would not be: it is a template, parallel only in code that is compiled with
// OpenMP, and then with an OpenMP that may not be torch's. An iterator's loop runs inside torch.
template <typename Kernel>
void in_threads(const Kernel& kernel, at::Tensor& out, bool streaming) {
  float* to = out.mutable_data_ptr<float>();
  if (out.numel() <= kGrain) return kernel.write(to, 0, out.numel(), streaming);
  at::TensorIterator iterator = at::TensorIterator::nullary_op(out);
  iterator.for_each(
      [&](char** data, const int64_t* /*strides*/, int64_t size, int64_t rows) {
        const int64_t begin = reinterpret_cast<const float*>(data[0]) - to;
        kernel.write(to, begin, begin + size * rows, streaming);
      },
      kGrain);
}
#endif

bool on_processor([[maybe_unused]] const at::Tensor& tensor) {
#ifdef DDIP_HAS_AVX2_KERNELS
  return processor_can() && tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
#else
  return false;
#endif
}

bool on_gpu(const at::Tensor& tensor) {
  return tensor.is_cuda() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
}

}  // namespace

bool runs_fused(const at::Tensor& tensor) { return why_unfused(tensor).empty(); }

std::string why_unfused(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kFloat) return "it is not fp32";
  if (!tensor.is_contiguous()) return "it is not contiguous";
  if (tensor.is_cuda()) return cuda::obstacle(tensor.device());
  return on_processor(tensor) ? "" : "the processor has no AVX2 and FMA";
}

at::Tensor nearest_root(const at::Tensor& tensor) {
  const bool is_off = tensor.is_cpu() && tensor.scalar_type() == at::kFloat;
  return is_off ? tensor.to(at::kDouble).sqrt_().to(at::kFloat) : tensor.sqrt();
}

void fused_linear(at::Tensor& out, const at::Tensor& weights, const at::Tensor& all_velocity,
                  const at::Tensor& all_pending, const Coefficients& by) {
  const at::Tensor velocity = term(all_velocity, by.velocity), pending = term(all_pending, by.pending);
#ifdef DDIP_HAS_AVX2_KERNELS
  if (on_processor(out))
    return in_threads(avx2::Linear{floats(weights), floats(velocity), floats(pending), static_cast<float>(by.weights),
                                   static_cast<float>(by.velocity), static_cast<float>(by.pending)},
                      out, out.numel() >= kStreamingFrom);
#endif
  if (on_gpu(out) && cuda::linear(out, weights, velocity, pending, by)) return;
  if (by.weights == 1 && velocity.defined()) {  // the common case in one launch
    at::add_out(out, weights, velocity, by.velocity);
  } else {
    out.copy_(weights);
    if (by.weights != 1) out.mul_(by.weights);
    if (velocity.defined()) out.add_(velocity, by.velocity);
  }
  if (pending.defined()) out.add_(pending, by.pending);
}

void fused_adaptive(at::Tensor& out, const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
                    const at::Tensor& all_pending, const AdaptiveCoefficients& by) {
  if (by.moved == 0) return fused_linear(out, weights, {}, {}, {.weights = by.weights});
  const at::Tensor pending = term(all_pending, by.pending);
#ifdef DDIP_HAS_AVX2_KERNELS
  if (on_processor(out))
    return in_threads(
        avx2::Adaptive{floats(weights), floats(first), floats(second), floats(pending), static_cast<float>(by.weights),
                       static_cast<float>(by.moved), static_cast<float>(by.root), static_cast<float>(by.eps),
                       static_cast<float>(by.first), static_cast<float>(by.pending)},
        out, out.numel() >= kStreamingFrom);
#endif
  if (on_gpu(out) && cuda::adaptive(out, weights, first, second, pending, by)) return;
  at::Tensor moment = by.first == 1 ? first : first.mul(by.first);
  if (pending.defined()) moment = moment.add(pending, by.pending);
  const at::Tensor denominator = nearest_root(second).mul_(by.root).add_(by.eps);
  if (by.weights == 1) {
    at::addcdiv_out(out, weights, moment, denominator, by.moved);
  } else {
    out.copy_(weights).mul_(by.weights).addcdiv_(moment, denominator, by.moved);
  }
}

void fused_steps(at::Tensor& out, const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
                 const at::Tensor& all_pending, const AdaptiveSteps& by) {
  const at::Tensor pending = by.through_moments ? term(all_pending, by.pending) : at::Tensor();
#ifdef DDIP_HAS_AVX2_KERNELS
  if (on_processor(out)) {
    std::vector<avx2::Steps::One> steps;
    for (const auto& [kept, root, moment, gradient] : by.steps)
      steps.push_back({static_cast<float>(kept), static_cast<float>(root), static_cast<float>(moment),
                       static_cast<float>(gradient)});
    return in_threads(avx2::Steps{floats(weights), floats(first), floats(second), floats(pending), steps.data(),
                                  static_cast<int64_t>(steps.size()), static_cast<float>(by.eps),
                                  static_cast<float>(by.first), static_cast<float>(by.decay),
                                  static_cast<float>(by.pending), by.through_moments, by.moves_by_gradient},
                      out, out.numel() >= kStreamingFrom);
  }
#endif
  if (on_gpu(out) && cuda::steps(out, weights, first, second, pending, by)) return;
  at::Tensor moment = by.through_moments ? first.clone() : first, denominator, before;
  out.copy_(weights);
  for (size_t k = 0; k < by.steps.size(); ++k) {
    const AdaptiveSteps::One& step = by.steps[k];
    if (step.kept != 1) out.mul_(step.kept);
    if (k == 0 || step.root != by.steps[k - 1].root) denominator = nearest_root(second).mul_(step.root).add_(by.eps);
    if (by.moves_by_gradient) before = out.clone();
    if (by.through_moments) moment.mul_(by.first).add_(out, by.decay);
    if (pending.defined() && k == 0) moment.add_(pending, by.pending);
    if (by.moves_by_gradient) out.addcdiv_(before, denominator, step.gradient);
    out.addcdiv_(moment, denominator, step.moment);
  }
}

void fused_gap(at::Tensor& gradient, const at::Tensor& now, const at::Tensor& used, const at::Tensor& unit) {
#ifdef DDIP_HAS_AVX2_KERNELS
  if (on_processor(gradient))
    return in_threads(avx2::Gap{floats(gradient), floats(now), floats(used), floats(unit)}, gradient, false);
#endif
  if (on_gpu(gradient) && cuda::gap(gradient, now, used, unit)) return;
  gradient.div_(at::sub(now, used).abs_().div_(unit).add_(1.0));
}

}  // namespace ddip::staleness
