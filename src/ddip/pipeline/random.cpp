#include "ddip/pipeline/random.h"

namespace ddip::pipeline {
namespace {

uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t seed_of(uint64_t run, int stage, int64_t micro_batch) {
  return mix(mix(run + static_cast<uint64_t>(stage)) + static_cast<uint64_t>(micro_batch)) >> 1;
}

OwnRandomNumbers::Kept OwnRandomNumbers::reseed(at::Generator generator, uint64_t seed) {
  std::lock_guard lock(generator.mutex());
  Kept kept{generator, generator.get_state()};
  generator.set_current_seed(seed);
  return kept;
}

void OwnRandomNumbers::put_back(Kept& kept) {
  std::lock_guard lock(kept.generator.mutex());
  kept.generator.set_state(kept.state);
}

OwnRandomNumbers::OwnRandomNumbers(uint64_t seed, at::Device device)
    : cpu_(reseed(at::detail::getDefaultCPUGenerator(), seed)) {
  if (!device.is_cpu()) gpu_ = reseed(at::globalContext().defaultGenerator(device), seed);
}

OwnRandomNumbers::~OwnRandomNumbers() {
  put_back(cpu_);
  if (gpu_) put_back(*gpu_);
}

}  // namespace ddip::pipeline
