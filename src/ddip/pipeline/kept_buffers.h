// Everything a forward may change beside its result, put back afterwards: what runs again, or only to be measured, must
// not count.
#pragma once

#include <vector>

#include "ddip/tensors/torch.h"

namespace ddip::pipeline {

class KeptBuffers {
 public:
  explicit KeptBuffers(std::vector<at::Tensor> buffers);
  ~KeptBuffers();
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

  void put_back();

 private:
  const std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> copies_;
};

}  // namespace ddip::pipeline
