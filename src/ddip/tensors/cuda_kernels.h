// Kernels of our own on one GPU: compiled and loaded when they are made, launched on torch's current stream. Through
// the driver, which is there wherever torch uses a GPU: building needs nothing of CUDA.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ddip/tensors/torch.h"

namespace ddip::tensors {

class CudaKernels {
 public:
  // `text` defines each of `names` as extern "C" __global__. Throws ConfigError where a part of CUDA is missing. What
  // is loaded stays until the process ends: the driver may be gone before our destructors run.
  CudaKernels(at::Device device, const std::string& text, const std::vector<std::string>& names);

  // At least as many threads as asked for, unless that were too many: a kernel's loop makes up for it. The arguments
  // must have exactly the kernel's types. Throws ConfigError if the launch is refused; then nothing has been done.
  template <typename... Arguments>
  void launch(const std::string& name, int64_t threads, Arguments... arguments) const {
    void* places[] = {&arguments...};
    launch_with(name, threads, places);
  }

 private:
  void launch_with(const std::string& name, int64_t threads, void** arguments) const;

  const at::Device device_;
  void* context_ = nullptr;
  std::map<std::string, void*> functions_;
};

}  // namespace ddip::tensors
