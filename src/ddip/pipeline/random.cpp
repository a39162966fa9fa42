#include "ddip/pipeline/random.h"

namespace ddip::pipeline {
namespace {

uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

at::CPUGeneratorImpl& cpu_generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

}  // namespace

uint64_t seed_of(uint64_t run, int stage, int64_t micro_batch) {
  return mix(mix(run + static_cast<uint64_t>(stage)) + static_cast<uint64_t>(micro_batch)) >> 1;
}

OwnRandomNumbers::KeptCpu OwnRandomNumbers::reseed_cpu(uint64_t seed) {
  at::CPUGeneratorImpl& cpu = cpu_generator();
  std::lock_guard lock(cpu.mutex_);
  KeptCpu kept{cpu.engine(), cpu.next_float_normal_sample(), cpu.next_double_normal_sample()};
  cpu.set_current_seed(seed);
  return kept;
}

OwnRandomNumbers::OwnRandomNumbers(uint64_t seed, at::Device device) : cpu_(reseed_cpu(seed)) {
  if (device.is_cpu()) return;
  at::Generator gpu = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(gpu.mutex());
  gpu_ = KeptGpu{gpu, gpu.get_state()};
  gpu.set_current_seed(seed);
}

OwnRandomNumbers::~OwnRandomNumbers() {
  {
    at::CPUGeneratorImpl& cpu = cpu_generator();
    std::lock_guard lock(cpu.mutex_);
    cpu.set_engine(cpu_.engine);
    cpu.set_next_float_normal_sample(cpu_.next_float);
    cpu.set_next_double_normal_sample(cpu_.next_double);
  }
  if (!gpu_) return;
  try {
    std::lock_guard lock(gpu_->generator.mutex());
    gpu_->generator.set_state(gpu_->state);
  } catch (const std::exception&) {
    // It is torch's memory on the host, but torch asks the GPU first: one that has failed draws no more numbers.
  }
}

}  // namespace ddip::pipeline
