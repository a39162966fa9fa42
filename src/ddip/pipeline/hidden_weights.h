// Weights that a stage computes with and does not have: its function reaches them by a reference of its own, past the
// stage's module. It would compute with a copy that nobody trains, or that another rank trains differently.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <map>
#include <set>

#include "ddip/pipeline/part.h"

namespace ddip::pipeline {

class HiddenWeights {
 public:
  HiddenWeights(const std::vector<Part>& parts, int stage);

  // After each forward; only the first two with a graph are looked at. Throws ConfigError: a weight of another stage,
  // or one that is in no stage, which it has met twice (a leaf that the forward made itself is another one each time).
  void look_at(const std::vector<Value>& inputs, const std::vector<Value>& outputs);

 private:
  std::string name_;
  std::set<const at::TensorImpl*> own_;
  std::map<const at::TensorImpl*, std::string> others_;
  std::set<c10::weak_intrusive_ptr<at::TensorImpl>> met_;  // keeps the address from being used again, not the tensor
  int left_ = 2;
};

}  // namespace ddip::pipeline
