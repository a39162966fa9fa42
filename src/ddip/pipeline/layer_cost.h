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

  double forward_ms() const { return forward_; }
  double backward_ms() const { return backward_; }
  uint64_t parameter_bytes() const;

 private:
  std::vector<Value> run(const std::vector<Value>& given) const;
  void run_both_ways();
  double now() const;  // ms, when all that was asked of its device is done

  const Part& part_;
  const Place place_;
  const std::vector<Value> inputs_;
  const at::Device device_;
  std::vector<Value> outputs_;
  double forward_, backward_;
};

uint64_t bytes_of(const Value& value);

}  // namespace ddip::pipeline
