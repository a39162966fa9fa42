#include <immintrin.h>

#include <cmath>

#include "ddip/staleness/fused_kernels.h"

namespace ddip::staleness::avx2 {
namespace {

constexpr int64_t kLanes = 8;

// Eight floats, or one: the same operations on either, so that the ends of a range get the same bits as its middle.
struct Eight {
  __m256 value;
  static Eight load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Eight all(float value) { return {_mm256_set1_ps(value)}; }
};
struct One {
  float value;
  static One load(const float* from) { return {*from}; }
  static One all(float value) { return {value}; }
};
inline Eight operator+(Eight x, Eight y) { return {_mm256_add_ps(x.value, y.value)}; }
inline Eight operator-(Eight x, Eight y) { return {_mm256_sub_ps(x.value, y.value)}; }
inline Eight operator*(Eight x, Eight y) { return {_mm256_mul_ps(x.value, y.value)}; }
inline Eight operator/(Eight x, Eight y) { return {_mm256_div_ps(x.value, y.value)}; }
inline Eight root_of(Eight x) { return {_mm256_sqrt_ps(x.value)}; }
inline Eight size_of(Eight x) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), x.value)}; }
inline Eight fma(Eight x, Eight y, Eight z) { return {_mm256_fmadd_ps(x.value, y.value, z.value)}; }
inline One operator+(One x, One y) { return {x.value + y.value}; }
inline One operator-(One x, One y) { return {x.value - y.value}; }
inline One operator*(One x, One y) { return {x.value * y.value}; }
inline One operator/(One x, One y) { return {x.value / y.value}; }
inline One root_of(One x) { return {std::sqrt(x.value)}; }
inline One size_of(One x) { return {std::fabs(x.value)}; }
inline One fma(One x, One y, One z) { return {std::fma(x.value, y.value, z.value)}; }

// Writes of(Eight or One, index) for begin..end.
template <typename Of>
void write_each(float* out, int64_t begin, int64_t end, bool streaming, Of of) {
  int64_t index = begin;
  for (; index < end && reinterpret_cast<uintptr_t>(out + index) % sizeof(__m256) != 0; ++index)
    out[index] = of(One{}, index).value;
  if (streaming) {
    for (; index + kLanes <= end; index += kLanes) _mm256_stream_ps(out + index, of(Eight{}, index).value);
    _mm_sfence();
  } else {
    for (; index + kLanes <= end; index += kLanes) _mm256_store_ps(out + index, of(Eight{}, index).value);
  }
  for (; index < end; ++index) out[index] = of(One{}, index).value;
}

}  // namespace

void Linear::write(float* out, int64_t begin, int64_t end, bool streaming) const {
  const Linear terms = *this;  // so that stores into `out` cannot change it
  write_each(out, begin, end, streaming, [terms]<typename V>(V, int64_t index) {
    V sum = V::load(terms.weights + index);
    if (terms.a != 1) sum = sum * V::all(terms.a);
    if (terms.velocity) sum = fma(V::all(terms.b), V::load(terms.velocity + index), sum);
    if (terms.pending) sum = fma(V::all(terms.c), V::load(terms.pending + index), sum);
    return sum;
  });
}

void Adaptive::write(float* out, int64_t begin, int64_t end, bool streaming) const {
  const Adaptive terms = *this;
  write_each(out, begin, end, streaming, [terms]<typename V>(V, int64_t index) {
    V weights = V::load(terms.weights + index), moment = V::load(terms.first + index);
    if (terms.a != 1) weights = weights * V::all(terms.a);
    if (terms.b != 1) moment = moment * V::all(terms.b);
    if (terms.pending) moment = fma(V::all(terms.c), V::load(terms.pending + index), moment);
    const V denominator = root_of(V::load(terms.second + index)) * V::all(terms.root) + V::all(terms.eps);
    return weights + V::all(terms.moved) * moment / denominator;
  });
}

void Steps::write(float* out, int64_t begin, int64_t end, bool streaming) const {
  const Steps by = *this;
  write_each(out, begin, end, streaming, [by]<typename V>(V, int64_t index) {
    V weights = V::load(by.weights + index), moment = V::load(by.first_moment + index);
    const V root = root_of(V::load(by.second + index));
    for (int64_t k = 0; k < by.count; ++k) {
      const One step = by.steps[k];
      if (step.kept != 1) weights = weights * V::all(step.kept);
      const V before = weights, denominator = root * V::all(step.root) + V::all(by.eps);
      if (by.through_moments) moment = fma(V::all(by.decay), weights, moment * V::all(by.first));
      if (by.pending && k == 0) moment = fma(V::all(by.pending_weight), V::load(by.pending + index), moment);
      if (by.moves_by_gradient) weights = weights + V::all(step.gradient) * before / denominator;
      weights = weights + V::all(step.moment) * moment / denominator;
    }
    return weights;
  });
}

void Gap::write(float* out, int64_t begin, int64_t end, bool streaming) const {
  const Gap terms = *this;
  write_each(out, begin, end, streaming, [terms]<typename V>(V, int64_t index) {
    const V gap = size_of(V::load(terms.now + index) - V::load(terms.used + index));
    return V::load(terms.gradient + index) / (gap / V::load(terms.unit + index) + V::all(1));
  });
}

}  // namespace ddip::staleness::avx2
