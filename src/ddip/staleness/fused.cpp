#include "ddip/staleness/fused.h"

#include <ATen/TensorIterator.h>

#include <algorithm>

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

const float* floats(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr; }

// Calls part(begin, end) in torch's threads. at::parallel_for would not: it is a template, parallel only in code that
// is compiled with OpenMP, and then with an OpenMP that may not be torch's. An iterator's loop runs inside torch.
template <typename Part>
void in_threads(at::Tensor& out, Part part) {
  const float* first = out.const_data_ptr<float>();
  at::TensorIterator iterator = at::TensorIterator::nullary_op(out);
  iterator.for_each(
      [&](char** data, const int64_t* /*strides*/, int64_t size, int64_t rows) {
        const int64_t begin = reinterpret_cast<const float*>(data[0]) - first;
        part(begin, begin + size * rows);
      },
      kGrain);
}

template <typename Kernel>
void write_in_threads(const Kernel& kernel, at::Tensor& out, bool streaming) {
  float* to = out.mutable_data_ptr<float>();
  in_threads(out, [&](int64_t begin, int64_t end) { kernel.write(to, begin, end, streaming); });
}

// The root is torch's: on CPU it is MKL's, which is not always the nearest float. Taken block by block, it stays in the
// cache until it is used.
void adaptive_in_threads(at::Tensor& out, const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
                         const at::Tensor& pending, const AdaptiveCoefficients& by) {
  constexpr int64_t kBlock = 32768;
  float* to = out.mutable_data_ptr<float>();
  const bool streaming = out.numel() >= kStreamingFrom;
  in_threads(out, [&](int64_t begin, int64_t end) {
    at::NoGradGuard no_grad;  // each thread has its own
    at::Tensor scratch = at::empty({std::min(kBlock, end - begin)}, out.options());
    for (int64_t block = begin; block < end; block += kBlock) {
      const int64_t length = std::min(kBlock, end - block);
      at::Tensor roots = scratch.narrow(0, 0, length);
      at::sqrt_out(roots, second.narrow(0, block, length));
      const avx2::Adaptive terms{floats(weights) + block,
                                 floats(first) + block,
                                 floats(roots),
                                 pending.defined() ? floats(pending) + block : nullptr,
                                 static_cast<float>(by.weights),
                                 static_cast<float>(by.moved),
                                 static_cast<float>(by.root),
                                 static_cast<float>(by.eps),
                                 static_cast<float>(by.first),
                                 static_cast<float>(by.pending)};
      terms.write(to + block, 0, length, streaming);
    }
  });
}
#endif

}  // namespace

bool runs_fused([[maybe_unused]] const at::Tensor& tensor) {
#ifdef DDIP_HAS_AVX2_KERNELS
  return processor_can() && tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
#else
  return false;
#endif
}

void fused_linear(at::Tensor& out, const at::Tensor& weights, const at::Tensor& all_velocity,
                  const at::Tensor& all_pending, const Coefficients& by) {
  const at::Tensor velocity = term(all_velocity, by.velocity), pending = term(all_pending, by.pending);
#ifdef DDIP_HAS_AVX2_KERNELS
  if (runs_fused(out))
    return write_in_threads(
        avx2::Linear{floats(weights), floats(velocity), floats(pending), static_cast<float>(by.weights),
                     static_cast<float>(by.velocity), static_cast<float>(by.pending)},
        out, out.numel() >= kStreamingFrom);
#endif
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
  if (runs_fused(out)) return adaptive_in_threads(out, weights, first, second, pending, by);
#endif
  at::Tensor moment = by.first == 1 ? first : first.mul(by.first);
  if (pending.defined()) moment = moment.add(pending, by.pending);
  const at::Tensor denominator = second.sqrt().mul_(by.root).add_(by.eps);
  if (by.weights == 1) {
    at::addcdiv_out(out, weights, moment, denominator, by.moved);
  } else {
    out.copy_(weights).mul_(by.weights).addcdiv_(moment, denominator, by.moved);
  }
}

void fused_gap(at::Tensor& gradient, const at::Tensor& now, const at::Tensor& used, const at::Tensor& unit) {
#ifdef DDIP_HAS_AVX2_KERNELS
  if (runs_fused(gradient))
    return write_in_threads(avx2::Gap{floats(gradient), floats(now), floats(used), floats(unit)}, gradient, false);
#endif
  gradient.div_(at::sub(now, used).abs_().div_(unit).add_(1.0));
}

}  // namespace ddip::staleness
