// Where and how a rank computes.
#pragma once

#include "ddip/tensors/torch.h"

namespace ddip::models::unet {

// "auto": this rank's GPU if there is one (ranks take turns), else the CPU. Throws ConfigError for "cuda" without one.
at::Device device_of(const std::string& name, int local_rank);

// Energies (MeV × 100, from 10 to some thousands, most of them 0) as the network likes them: of the size of one.
at::Tensor prepared(const at::Tensor& images, at::Device device);

// While it lives, convolutions compute in bf16; parameters and sums stay fp32. Does nothing for fp32.
class Precision {
 public:
  Precision(const std::string& name, at::Device device);
  ~Precision();
  Precision(const Precision&) = delete;
  Precision& operator=(const Precision&) = delete;

 private:
  at::DeviceType device_;
  bool active_;
  bool was_enabled_ = false;
  at::ScalarType old_type_ = at::kBFloat16;
};

}  // namespace ddip::models::unet
