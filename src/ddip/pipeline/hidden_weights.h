// Weights that a stage computes with and does not have: its function reaches them by a reference of its own, past the
// stage's module. It would compute with a copy that nobody trains, or that another rank trains differently.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ddip/tensors/torch.h"

namespace ddip::pipeline {

class HiddenWeights {
 public:
  // `others`: of the other stages, with their names for people.
  HiddenWeights(const std::vector<at::Tensor>& own, const std::vector<std::pair<std::string, at::Tensor>>& others);

  struct Found {
    std::string name;  // empty: in no stage
    int64_t elements = 0;
  };
  // Around each forward, with the tensors that come and leave; after two with a graph and nothing found all is done.
  // Before it, because a forward may change its inputs in place.
  void enter(const std::vector<at::Tensor>& inputs);
  // Finds a weight of another stage, or one of no stage that it has met before (a leaf that the forward made itself is
  // another one each time).
  std::optional<Found> leave(const std::vector<at::Tensor>& outputs);
  bool is_done() const { return left_ == 0; }

 private:
  std::set<const at::TensorImpl*> own_;
  std::map<const at::TensorImpl*, std::string> others_;
  std::set<c10::weak_intrusive_ptr<at::TensorImpl>> met_;  // keeps the address from being used again, not the tensor
  std::set<const torch::autograd::Node*> known_;           // of the inputs
  int left_ = 2;
};

}  // namespace ddip::pipeline
