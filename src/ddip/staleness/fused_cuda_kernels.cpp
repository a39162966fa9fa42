#include "ddip/staleness/fused_cuda.h"

namespace ddip::staleness::cuda {

const std::vector<std::string>& kernel_names() {
  static const std::vector<std::string> names = {"linear", "adaptive", "steps", "gap"};
  return names;
}

// Every rounding is spelled out, as nothing else keeps the compiler from contracting: a·b+c is one rounding in torch's
// CUDA kernels wherever they have both in one expression (add with alpha, addcdiv: c + value·(a/b)), and two where they
// are two operations.
const char* kernel_text() {
  return R"cuda(
// Neighbours go in fours, each at a multiple of 16 bytes, after `head` single ones; the others, one by one.
struct Range {
  long long count, head, fours;
};

__device__ float4 four(const float* from, long long head, long long index) {
  return from ? reinterpret_cast<const float4*>(from + head)[index] : make_float4(0, 0, 0, 0);
}
__device__ float one(const float* from, long long index) { return from ? from[index] : 0; }

template <typename Of, typename... Fours>
__device__ float4 each(Of of, float4 in, Fours... more) {
  return make_float4(of(in.x, more.x...), of(in.y, more.y...), of(in.z, more.z...), of(in.w, more.w...));
}
template <typename Of, typename... Ones>
__device__ float each(Of of, float in, Ones... more) {
  return of(in, more...);
}

// Writes of(four elements, or one, of each of `from`) for all elements; out may be one of them.
template <typename Of, typename... From>
__device__ void write(float* out, Range range, Of of, From... from) {
  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x, threads = gridDim.x * (long long)blockDim.x;
#pragma unroll 1
  for (long long index = thread; index < range.fours; index += threads)
    reinterpret_cast<float4*>(out + range.head)[index] = of(four(from, range.head, index)...);
#pragma unroll 1
  for (long long rest = thread; rest < range.count - 4 * range.fours; rest += threads) {
    const long long index = rest < range.head ? rest : rest + 4 * range.fours;
    out[index] = of(one(from, index)...);
  }
}

template <typename Of>
struct Each {
  Of of;
  template <typename... In>
  __device__ auto operator()(In... in) const {
    return each(of, in...);
  }
};
template <typename Of, typename... From>
__device__ void write_each(float* out, Range range, Of of, From... from) {
  write(out, range, Each<Of>{of}, from...);
}

extern "C" __global__ void linear(float* out, Range range, const float* weights, const float* velocity,
                                  const float* pending, float a, float b, float c) {
  auto of = [=](float w, float v, float p) {
    float sum = __fmul_rn(w, a);
    if (velocity) sum = __fmaf_rn(b, v, sum);
    if (pending) sum = __fmaf_rn(c, p, sum);
    return sum;
  };
  write_each(out, range, of, weights, velocity, pending);
}

__device__ float denominator(float root, float scale, float eps) { return __fadd_rn(__fmul_rn(root, scale), eps); }

extern "C" __global__ void adaptive(float* out, Range range, const float* weights, const float* first,
                                    const float* second, const float* pending, float a, float moved, float root,
                                    float eps, float b, float c) {
  auto of = [=](float w, float m, float u, float p) {
    float moment = __fmul_rn(m, b);
    if (pending) moment = __fmaf_rn(c, p, moment);
    return __fmaf_rn(moved, __fdiv_rn(moment, denominator(__fsqrt_rn(u), root, eps)), __fmul_rn(w, a));
  };
  write_each(out, range, of, weights, first, second, pending);
}

struct Steps {
  struct One {
    float kept, root, moment, gradient;
  } steps[64];
  float eps, first, decay, pending;
  int count, through_moments, moves_by_gradient;
};

// Four elements go through each step together: a division waits for itself only, not for the other three.
struct ThroughSteps {
  const Steps& by;
  bool pending;
  template <typename Floats>
  __device__ Floats operator()(Floats w, Floats m, Floats u, Floats p) const {
    const Floats root = each([](float u) { return __fsqrt_rn(u); }, u);
#pragma unroll 1
    for (int k = 0; k < by.count; ++k) {
      const Steps::One& step = by.steps[k];
      const Floats under = each([&](float root) { return denominator(root, step.root, by.eps); }, root);
      auto moved = [&](float by, Floats n) {
        return each([=](float w, float n, float under) { return __fmaf_rn(by, __fdiv_rn(n, under), w); }, w, n, under);
      };
      w = each([&](float w) { return __fmul_rn(w, step.kept); }, w);
      if (by.through_moments)
        m = each([&](float m, float w) { return __fmaf_rn(by.decay, w, __fmul_rn(m, by.first)); }, m, w);
      if (pending && k == 0) m = each([&](float m, float p) { return __fmaf_rn(by.pending, p, m); }, m, p);
      if (by.moves_by_gradient) w = moved(step.gradient, w);
      w = moved(step.moment, m);
    }
    return w;
  }
};

// Six blocks to a multiprocessor: with more registers there are too few threads to hide the divisions.
extern "C" __global__ void __launch_bounds__(256, 6)
    steps(float* out, Range range, const float* weights, const float* first, const float* second, const float* pending,
          const Steps by) {
  write(out, range, ThroughSteps{by, pending != nullptr}, weights, first, second, pending);
}

extern "C" __global__ void gap(float* out, Range range, const float* gradient, const float* now, const float* used,
                               const float* unit) {
  auto of = [=](float g, float w, float old, float c) {
    return __fdiv_rn(g, __fadd_rn(__fdiv_rn(fabsf(__fsub_rn(w, old)), c), 1));
  };
  write_each(out, range, of, gradient, now, used, unit);
}
)cuda";
}

}  // namespace ddip::staleness::cuda
