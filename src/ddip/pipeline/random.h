// Random numbers of one micro-batch on one stage: the same in its forward, in its recomputation, in a replay, and
// whatever else draws numbers in this process goes on as if nothing had happened.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

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
  // torch's generator of the CPU by its parts: get_state and set_state would make a tensor of 5 KiB of it each time.
  struct KeptCpu {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  struct KeptGpu {
    at::Generator generator;
    at::Tensor state;
  };

  static KeptCpu reseed_cpu(uint64_t seed);

  KeptCpu cpu_;
  std::optional<KeptGpu> gpu_;
};

}  // namespace ddip::pipeline
