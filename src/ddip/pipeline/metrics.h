// What an evaluation measures beside the loss, on the last stage.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "ddip/pipeline/loss_function.h"

namespace ddip::pipeline {

// By name. A metric is what a loss is: the mean over a micro-batch's samples, or a pair (sum, count).
using Metrics = std::map<std::string, LossFunction>;

class Measured {
 public:
  Measured() = default;
  explicit Measured(Metrics metrics) : metrics_(std::move(metrics)) {}

  void add(const Value& output, const Value& target, int64_t samples);

  // In the order of the names: what all ranks must ask for alike.
  std::vector<std::string> names() const;
  // One rank's sums, as they travel; and the means over all ranks' counts. Without any: not a number.
  nlohmann::json share() const;
  static std::map<std::string, double> means(const std::vector<nlohmann::json>& shares);

 private:
  struct Sum {
    double sum = 0, count = 0;
  };
  Metrics metrics_;
  std::map<std::string, Sum> sums_;
};

}  // namespace ddip::pipeline
