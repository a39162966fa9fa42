// A backward in two parts: what the stages before wait for, and later the gradients of the weights. The second part is
// what a schedule without bubbles (zb1, zbv) fills its gaps with.
//
// Two searches through the whole graph would compute the first part twice. Instead the first part remembers the
// gradients that arrive where the ways to the inputs and to the weights part, and the second begins there, in a graph
// that has lost its ways to the inputs.
#pragma once

#include <memory>
#include <string>

#include "ddip/pipeline/border.h"

namespace ddip::pipeline {

class SplitBackward {
 public:
  // Null if there are no two parts, or if they may not be computed apart: a node of Python's, of a compiled stage or of
  // a recurrent layer computes both at once, and one that somebody has hooked must run once. `why` names it then.
  static std::unique_ptr<SplitBackward> of(const Roots& roots, const torch::autograd::edge_list& inputs,
                                           std::string& why);

  void input_gradients();
  void weight_gradients();  // once, after the others

 private:
  // Where the ways part, with what arrived there.
  struct Fork {
    torch::autograd::Edge node;
    std::vector<size_t> to_inputs;  // which of its next edges
    std::shared_ptr<torch::autograd::variable_list> arrived;
  };

  Roots roots_;
  torch::autograd::edge_list inputs_;
  Roots to_weights_;  // where the second part begins; until the first is done, only roots that lead to no input
  std::vector<Fork> forks_;
  std::vector<torch::autograd::Node*> between_;  // on the way to inputs alone; alive as long as the roots are
};

}  // namespace ddip::pipeline
