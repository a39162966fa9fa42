// A stage's gradients, summed since the last step, in one piece of memory. The first one of each parameter is moved
// there as soon as autograd has it, while it is still in the cache, and autograd adds the later ones to it: nothing has
// to be zeroed between two steps. (To leave the first one where it was computed, as torch does, would save that copy,
// but then the memory of all gradients is given back to the system and asked for anew at each step: measured, slower.)
//
// So a sum begins with its first gradient, not with zero: -0 stays -0, here and in a replay.
#pragma once

#include <memory>

#include "ddip/pipeline/flat_layout.h"

namespace ddip::pipeline {

class Gradients {
 public:
  Gradients(std::vector<at::Tensor> parameters, const FlatLayout& layout);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // The sums; zeros for a parameter that has got none. What is written into it stays until the next step.
  const at::Tensor& flat();
  // Views of it, one for each parameter.
  const std::vector<at::Tensor>& places() const { return places_; }

  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // By parameter: whether a gradient has come to it since the last step, as far as flat() has seen.
  const std::vector<bool>& reached() const { return reached_; }
  // What came to other replicas counts too.
  void set_reached(const std::vector<bool>& reached) { reached_ = reached; }

  // After a step.
  void clear();
  // The sums begin anew within a step: somebody has them, and who was reached stays so.
  void set_aside();

 private:
  const std::vector<at::Tensor> parameters_;
  const at::Tensor flat_;
  const std::vector<at::Tensor> places_;
  std::vector<bool> zeroed_;  // places that nothing has come to since the sums began
  std::vector<bool> reached_;
};

}  // namespace ddip::pipeline
