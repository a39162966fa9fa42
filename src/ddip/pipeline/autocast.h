// bfloat16 or half precision where it does no harm, as torch.autocast has it, while one of these lives.
#pragma once

#include <string>

#include "ddip/tensors/torch.h"

namespace ddip::pipeline {

class Autocast {
 public:
  // `precision`: fp32, bf16, fp16.
  Autocast(const std::string& precision, at::Device device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool wanted_;
  const at::DeviceType device_;
  bool was_on_ = false;
  at::ScalarType was_ = at::kFloat;
};

}  // namespace ddip::pipeline
