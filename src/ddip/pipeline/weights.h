// A stage's parameters, in one piece of memory: the true ones, which the optimizer steps. The module's own parameters
// are views of a storage that is shown any flat weights without a copy: the true ones, or others where a stage of an
// asynchronous pipeline computes with predicted or older weights while the true ones move on.
//
// Autograd does not notice, because a parameter counts its own changes and not those of the memory behind it: a graph
// that was kept from a forward sees, in its backward, what is shown then. So every backward shows what it is meant to
// use (docs/pipeline_weights.md).
#pragma once

#include <string>

#include "ddip/pipeline/gradients.h"

namespace ddip::pipeline {

class Weights {
 public:
  // Parameters that want gradients, each once; they must be of one type and on one device. `names` is for errors.
  // `apart`: the module computes with other weights than the true ones now and then.
  Weights(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names, bool apart);

  // For the optimizer: views of the true weights, in the order of the parameters, whose gradients are the places of
  // `gradients`.
  const std::vector<at::Tensor>& masters() const { return masters_; }

  const at::Tensor& truth() const { return truth_; }
  const at::Tensor& seen() const { return seen_; }  // what the module computes with
  Gradients& gradients() { return gradients_; }
  const Gradients& gradients() const { return gradients_; }
  bool apart() const { return !seen_.is_same(truth_); }

  // What the module computes with from now on: this memory itself, as large as the true weights'. Who changes it later
  // changes what the module computes with.
  void show(const at::Tensor& flat);
  void show_truth() { show(truth_); }

  // Numbers of the parameters that no gradient has come to since the last step. An optimizer must leave them as they
  // are, as torch's own do with a parameter whose gradient is undefined.
  std::vector<size_t> unreached() const;

  std::vector<at::Tensor> slices(const at::Tensor& flat) const { return layout_->slices(flat); }
  const std::vector<int64_t>& begins() const { return layout_->begins(); }
  const std::vector<std::string>& names() const { return names_; }
  // Throws ConfigError if somebody has given a parameter other memory since, or frozen it: what is trained here would
  // reach nobody.
  void require_used() const;

 private:
  const std::vector<std::string> names_;
  std::shared_ptr<const FlatLayout> layout_;
  Gradients gradients_;
  at::Tensor truth_;
  at::Tensor seen_;   // what the parameters are views of; truth_ itself, if nothing else is ever shown
  at::Tensor shown_;  // whose memory that is now
  std::vector<at::Tensor> masters_;
};

}  // namespace ddip::pipeline
