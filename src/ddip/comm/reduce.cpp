#include "ddip/comm/reduce.h"

#include "ddip/base/check.h"
#include "ddip/comm/scaling.h"

namespace ddip::comm {

using Kernel = void(Element, Reduction, Scaling, std::span<const void* const>, void*, size_t);
namespace baseline {
Kernel reduce;
}
#ifdef DDIP_HAS_AVX2_KERNELS
namespace avx2 {
Kernel reduce;
}
#endif

namespace {

Kernel* choose() {
#ifdef DDIP_HAS_AVX2_KERNELS
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return avx2::reduce;
#endif
  return baseline::reduce;
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
  static Kernel* const kernel = choose();
  Scaling scaling;
  if (reduction == Reduction::mean) scaling.divisor = static_cast<double>(inputs.size());
  if (reduction == Reduction::scaled_sum) scaling.factor = scale;
  kernel(element, reduction, scaling, inputs, out, count);
}

}  // namespace ddip::comm
