// Where each parameter of a stage lies when they lie behind one another in one piece of memory.
#pragma once

#include <string>

#include "ddip/tensors/torch.h"

namespace ddip::pipeline {

class FlatLayout {
 public:
  // Parameters must be of one type and on one device. `names` is for errors.
  FlatLayout(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names);

  at::Tensor zeros() const;                                       // such memory
  std::vector<at::Tensor> slices(const at::Tensor& flat) const;   // one for each parameter, as it is laid out
  const std::vector<int64_t>& begins() const { return begins_; }  // where each lies; zeros between them

 private:
  std::vector<at::Tensor> like_;  // the parameters, for their shapes
  std::vector<int64_t> begins_;
  int64_t total_ = 0;
};

}  // namespace ddip::pipeline
