// One layer or stage alone: how long its forward and its backward take.
#pragma once

#include "ddip/pipeline/part.h"

namespace ddip::pipeline {

class LayerCost {
 public:
  // `name`: for people. `inputs`: one for each edge that leads to it; `outgoing`: edges that leave it. Runs it once.
  // Throws ConfigError that names it, if it cannot run.
  LayerCost(const Part& part, std::string name, std::vector<Value> inputs, size_t outgoing);

  // What it gave, one for each edge that leaves it.
  const std::vector<Value>& outputs() const { return outputs_; }
  // Runs it forward and backward; the fastest time counts.
  void measure();

  double forward_ms() const { return forward_; }
  double backward_ms() const { return backward_; }
  uint64_t parameter_bytes() const;

 private:
  double now() const;  // ms, when all that was asked of its device is done

  const Part& part_;
  const std::string name_;
  const std::vector<Value> inputs_;
  const size_t outgoing_;
  at::Device device_;
  std::vector<Value> outputs_;
  double forward_, backward_;
};

uint64_t bytes_of(const Value& value);

}  // namespace ddip::pipeline
