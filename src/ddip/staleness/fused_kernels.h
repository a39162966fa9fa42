// The vector code behind fused.h: plain memory, the part begin..end. Compiled for AVX2 and FMA; fused.cpp asks the
// processor first. A null pointer leaves its term out. `streaming` writes past the caches, for results that do not fit
// there anyway.
#pragma once

#include <cstdint>

namespace ddip::staleness::avx2 {

// out = fma(c, pending, fma(b, velocity, a·w))
struct Linear {
  const float *weights, *velocity, *pending;
  float a, b, c;
  void write(float* out, int64_t begin, int64_t end, bool streaming) const;
};

// out = a·w + (moved·q)/(√second·root + eps), q = fma(c, pending, b·m)
struct Adaptive {
  const float *weights, *first, *second, *pending;
  float a, moved, root, eps, b, c;
  void write(float* out, int64_t begin, int64_t end, bool streaming) const;
};

// For each step: w = kept·w; d = √second·root + eps; through the moments m = fma(decay, w, first·m), in the first step
// fma(pending_weight, pending, m); out = w + (moment·m)/d, and (gradient·w)/d where that moves it, too.
struct Steps {
  struct One {
    float kept, root, moment, gradient;
  };
  const float *weights, *first_moment, *second, *pending;
  const One* steps;
  int64_t count;
  float eps, first, decay, pending_weight;
  bool through_moments, moves_by_gradient;
  void write(float* out, int64_t begin, int64_t end, bool streaming) const;
};

// out = gradient / (|now − used| / unit + 1); out may be gradient.
struct Gap {
  const float *gradient, *now, *used, *unit;
  void write(float* out, int64_t begin, int64_t end, bool streaming) const;
};

}  // namespace ddip::staleness::avx2
