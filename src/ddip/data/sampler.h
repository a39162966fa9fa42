// Which samples a rank reads in an epoch: disjoint from the other ranks', together all that are not done, in an order
// that seed and epoch fix.
#pragma once

#include <cstdint>
#include <vector>

#include "ddip/data/ledger.h"

namespace ddip::data {

struct SamplerOptions {
  uint64_t samples = 0;
  int rank = 0;
  int world = 1;
  uint64_t batch = 1;
  uint64_t seed = 0;
  bool shuffle = true;
};

class Sampler {
 public:
  // Throws ConfigError for options that make no sense.
  explicit Sampler(const SamplerOptions& options);

  // `done`: samples that need not come again in this epoch, whoever did them; the same on all ranks. Where all ranks
  // did equally many, each goes on with what it would have had next.
  void begin_epoch(uint64_t epoch, const Ledger& done = {});

  // The next batch, smaller at the end; empty when this rank has no more. Nothing is dropped, so ranks may differ by
  // one.
  std::vector<uint64_t> next();

  uint64_t remaining() const { return mine_.size() - at_; }

 private:
  const SamplerOptions options_;
  std::vector<uint64_t> mine_;
  size_t at_ = 0;
};

}  // namespace ddip::data
