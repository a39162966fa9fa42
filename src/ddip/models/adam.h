// Adam with all parameters in one call (torch's fused kernels, CPU and CUDA), and a state that is just tensors.
#pragma once

#include <string>
#include <vector>

#include "ddip/tensors/torch.h"

namespace ddip::models {

class Adam {
 public:
  explicit Adam(std::vector<at::Tensor> parameters);

  bool has_gradients() const;
  // REQUIRES: has_gradients().
  void step(double learning_rate);
  void zero_gradients();

  struct Named {
    std::string name;
    at::Tensor tensor;
  };
  // By the parameters' names: "mean.NAME", "square.NAME", and "step".
  std::vector<Named> state(const std::vector<std::string>& names) const;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> means_;
  std::vector<at::Tensor> squares_;
  std::vector<at::Tensor> steps_;  // one for all, as often as the kernel wants it
  at::Tensor count_;
};

}  // namespace ddip::models
