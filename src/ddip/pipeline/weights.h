// A stage's parameters, in one piece of memory each: the true ones, which the optimizer steps, and those that the
// module computes with. They are apart because a stage of an asynchronous pipeline computes with predicted or older
// weights while the true ones move on.
//
// The module's are written without autograd noticing, because a parameter counts its own changes and not those of the
// memory it was given: a graph that was kept from a forward sees, in its backward, what was loaded last. So every
// backward loads what it is meant to use (docs/pipeline_weights.md).
#pragma once

#include <optional>
#include <string>

#include "ddip/tensors/torch.h"

namespace ddip::pipeline {

class Weights {
 public:
  // Parameters that want gradients, each once; they must be of one type and on one device. `names` is for errors.
  // `apart`: the module computes with other weights than the true ones now and then.
  Weights(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names, bool apart);

  // For the optimizer: views of the true weights, in the order of the parameters, whose gradients are views of
  // `gradient`.
  const std::vector<at::Tensor>& masters() const { return masters_; }

  const at::Tensor& truth() const { return truth_; }
  const at::Tensor& gradient() const { return gradient_; }  // what the backwards have summed since the last step
  bool apart() const { return !work_.is_same(truth_); }

  // What the module computes with from now on. `what` names it: nothing is copied if it is there already.
  void load_truth(int64_t version);
  void load(const at::Tensor& weights, int64_t label);
  // Where a prediction may be written; the label as in load.
  at::Tensor& work(int64_t label);
  int64_t label() const { return label_; }
  static constexpr int64_t kNothing = -1;

  std::vector<at::Tensor> slices(const at::Tensor& flat) const;   // one for each parameter
  const std::vector<int64_t>& begins() const { return begins_; }  // where each lies in flat memory; zeros between them
  int64_t bytes() const;                                          // that live because of us

 private:
  std::vector<at::Tensor> like_;  // the parameters, for their shapes
  std::vector<int64_t> begins_;
  at::Tensor truth_;
  at::Tensor work_;
  at::Tensor gradient_;
  std::vector<at::Tensor> masters_;
  int64_t label_ = kNothing;
};

}  // namespace ddip::pipeline
