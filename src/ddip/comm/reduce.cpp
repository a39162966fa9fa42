#include "ddip/comm/reduce.h"

#include "ddip/base/check.h"
#include "ddip/comm/scaling.h"

namespace ddip::comm {

using Kernel = void(Element, Reduction, Scaling, std::span<const void* const>, void*, size_t);
using Widen = void(Element, const void*, float*, size_t);
using Narrow = void(Element, const float*, void*, size_t);
namespace baseline {
Kernel reduce;
Widen to_floats;
Narrow from_floats;
}  // namespace baseline
#ifdef DDIP_HAS_AVX2_KERNELS
namespace avx2 {
Kernel reduce;
Widen to_floats;
Narrow from_floats;
}  // namespace avx2
#endif

namespace {

struct Kernels {
  Kernel* reduce;
  Widen* to_floats;
  Narrow* from_floats;
};

const Kernels& kernels() {
  static const Kernels chosen = [] {
#ifdef DDIP_HAS_AVX2_KERNELS
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
      return Kernels{avx2::reduce, avx2::to_floats, avx2::from_floats};
#endif
    return Kernels{baseline::reduce, baseline::to_floats, baseline::from_floats};
  }();
  return chosen;
}

}  // namespace

bool can_reduce(Element element, Reduction reduction) {
  switch (reduction) {
    case Reduction::mean:
    case Reduction::scaled_sum: return is_floating(element);
    case Reduction::bit_and:
    case Reduction::bit_or:
    case Reduction::bit_xor: return !is_floating(element);
    default: return true;
  }
}

void reduce(Element element, Reduction reduction, double scale, std::span<const void* const> inputs, void* out,
            size_t count) {
  DDIP_CHECK(can_reduce(element, reduction) && !inputs.empty(), "callers ask first");
  Scaling scaling;
  if (reduction == Reduction::mean) scaling.divisor = static_cast<double>(inputs.size());
  if (reduction == Reduction::scaled_sum) scaling.factor = scale;
  kernels().reduce(element, reduction, scaling, inputs, out, count);
}

void to_floats(Element element, const void* in, float* out, size_t count) {
  kernels().to_floats(element, in, out, count);
}

void from_floats(Element element, const float* in, void* out, size_t count) {
  kernels().from_floats(element, in, out, count);
}

}  // namespace ddip::comm
