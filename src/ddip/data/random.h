// Random numbers that are the same on every machine and in every version: results are fixed by their seed.
#pragma once

#include <cmath>
#include <cstdint>

namespace ddip::data {

// SplitMix64: small, fast, and good enough for shuffling and for synthetic events.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // One stream for each pair: (seed, epoch), (seed, event).
  Random(uint64_t seed, uint64_t stream) : state_(seed) {
    state_ = next() ^ (stream * 0xd1342543de82ef95u);
    next();
  }

  uint64_t next() {
    uint64_t value = state_ += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  }

  // 0 … limit - 1, each as likely as the others. REQUIRES: limit > 0.
  uint64_t below(uint64_t limit) {
    uint64_t unfair = -limit % limit;  // 2^64 mod limit: as many values at the lower end would come once too often
    for (;;) {
      uint64_t value = next();
      if (value >= unfair) return value % limit;
    }
  }

  // 0 ≤ x < 1
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double from, double to) { return from + (to - from) * uniform(); }
  // Mean 0, deviation 1: the sum of twelve, which is close enough and needs no library function.
  double normal() {
    double sum = -6;
    for (int index = 0; index < 12; ++index) sum += uniform();
    return sum;
  }
  double exponential(double mean) { return -mean * std::log(1.0 - uniform()); }

 private:
  uint64_t state_;
};

}  // namespace ddip::data
