// Where a stage's graph begins and ends: tensors from another stage, whose gradients go back to it, and tensors for
// another stage, whose gradients come back from it.
#pragma once

#include "ddip/pipeline/value.h"

namespace ddip::pipeline {

class Entry {
 public:
  // The value for the stage's forward. Its tensors share memory with the given ones but are no leaves: an in-place
  // operation on them is allowed and loses nothing, because nobody else reads that memory.
  Value enter(const Value& value);

  // After the backward: for each tensor its gradient, or None.
  Value gradients() const;
  // Where a backward ends at the tensors.
  const torch::autograd::edge_list& ends() const { return ends_; }

 private:
  struct Catch {
    at::Tensor gradient;
  };
  struct Node;
  std::vector<std::shared_ptr<Catch>> caught_;  // for each tensor; null: it can have no gradient
  torch::autograd::edge_list ends_;
};

// Where a backward begins.
struct Roots {
  torch::autograd::edge_list edges;
  std::vector<at::Tensor> gradients;
};

class Exit {
 public:
  Exit() = default;
  // Keeps the places in the graph, not the tensors: those live on only if the graph itself needs them.
  explicit Exit(const Value& value);

  // `gradients` as Entry gave them on the other side. Throws ConfigError if they do not fit.
  void add_to(Roots& roots, const Value& gradients) const;

 private:
  struct Place {
    torch::autograd::Edge edge;  // invalid: it has no graph
    std::vector<int64_t> sizes;
  };
  std::vector<Place> places_;
};

}  // namespace ddip::pipeline
