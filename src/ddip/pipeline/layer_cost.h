// One layer or stage alone: how long its forward and its backward take.
#pragma once

#include "ddip/pipeline/part.h"

namespace ddip::pipeline {

class LayerCost {
 public:
  struct Place {
    std::string name;             // for people
    at::Device elsewhere;         // where it computes if it has no tensors of its own
    size_t outgoing = 0;          // edges that leave it
    bool gives_gradients = true;  // to what is before it: something there is trained
  };
  // `inputs`: one for each edge that leads to it. Runs it once. Throws ConfigError that names it, if it cannot run.
  LayerCost(const Part& part, Place place, std::vector<Value> inputs);

  // What it gave, one for each edge that leaves it.
  const std::vector<Value>& outputs() const { return outputs_; }
  // Runs it forward and backward; the fastest time counts. Throws as above.
  void measure();
  // Bytes that a forward keeps for its backward. Throws as above.
  uint64_t count_activations() const;

  double forward_ms() const { return forward_; }
  double backward_ms() const { return backward_; }

 private:
  std::vector<Value> run(const std::vector<Value>& given) const;
  // As the executor gives them: gradients are asked of these leaves, …
  std::vector<Value> fresh_inputs() const;
  // … and the layer gets copies of them, which it may change in place.
  std::vector<Value> copied(const std::vector<Value>& leaves) const;
  std::vector<at::Tensor> outputs_with_graph(const std::vector<Value>& outputs) const;
  void run_both_ways();
  // What `work` throws, as a ConfigError that names the layer.
  template <typename Work>
  void explained(const char* what, Work work) const;
  double now() const;  // ms, when all that was asked of its device is done

  const Part& part_;
  const Place place_;
  const std::vector<Value> inputs_;
  const at::Device device_;
  std::vector<Value> outputs_;
  double forward_, backward_;
};

// All of them, several times.
void measure(std::vector<LayerCost>& layers);

uint64_t bytes_of(const Value& value);
// Where the first one that has tensors computes.
at::Device device_of(const std::vector<Part>& parts);

}  // namespace ddip::pipeline
