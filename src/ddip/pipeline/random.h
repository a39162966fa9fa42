// Random numbers of one micro-batch on one stage: the same in its forward, in its recomputation, in a replay, and
// whatever else draws numbers in this process goes on as if nothing had happened.
#pragma once

#include <cstdint>
#include <optional>

#include "ddip/tensors/torch.h"

namespace ddip::pipeline {

// As docs/ledger.md says.
uint64_t seed_of(uint64_t run, int stage, int64_t micro_batch);

class OwnRandomNumbers {
 public:
  OwnRandomNumbers(uint64_t seed, at::Device device);
  ~OwnRandomNumbers();
  OwnRandomNumbers(const OwnRandomNumbers&) = delete;
  OwnRandomNumbers& operator=(const OwnRandomNumbers&) = delete;

 private:
  struct Kept {
    at::Generator generator;
    at::Tensor state;
  };
  static Kept reseed(at::Generator generator, uint64_t seed);
  static void put_back(Kept& kept);

  Kept cpu_;
  std::optional<Kept> gpu_;
};

}  // namespace ddip::pipeline
