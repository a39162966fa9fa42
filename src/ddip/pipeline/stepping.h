// A stage's optimizer of torch::optim, as the staleness policies see it: it steps the stage's true weights, and its
// momenta are moved into flat memory, so that a prediction is one pass over them.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "ddip/pipeline/versions.h"

namespace ddip::pipeline {

// Called once for each stage, with its parameters.
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;
// The factor on the optimizer's rates in each step, from 0 on, as torch's LambdaLR has it. Empty: 1.
using RateFactor = std::function<double(int64_t step)>;

// SGD, Adam and AdamW; any other is Rule::other.
staleness::Rule rule_of(const torch::optim::Optimizer& optimizer);

// A parameter group in the policies' words, on this slice of flat memory. Throws ConfigError for what no pipeline can
// have.
staleness::Group group_of(staleness::Rule rule, const torch::optim::OptimizerParamGroup& group, int64_t begin = 0,
                          int64_t end = 0);

class Stepping {
 public:
  // Throws ConfigError.
  Stepping(std::shared_ptr<Weights> weights, const MakeOptimizer& make, RateFactor factor);

  Versions::Asks asks();

  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  const torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  staleness::Rule rule() const { return rule_; }
  int64_t steps() const { return steps_; }
  // By parameter group: what the factor is a factor on.
  const std::vector<double>& first_rates() const { return first_rates_; }
  // The optimizer has got a saved one's state: so many steps, from these rates.
  void restore(int64_t steps, std::vector<double> first_rates);

  // Called right before the optimizer steps, and when the policy has had its part in the step too.
  std::function<void()> on_step, on_stepped;
  // Rates of each parameter group in the last step, as the optimizer and the factor gave them.
  const std::vector<double>& last_rates() const { return last_rates_; }
  // What was said of each slice, of each parameter group.
  std::vector<std::vector<double>> by_group(const std::vector<std::vector<double>>& of_slices) const;

 private:
  // A slice of the flat memory within one parameter group.
  struct Slice {
    size_t group = 0;
    int64_t begin = 0, end = 0;
  };
  void refuse_other_parameters() const;  // nor fewer
  void find_slices();
  staleness::Optimizer state() const;
  std::vector<std::vector<double>> rates(int steps) const;
  void step(const std::vector<double>& rates);
  std::vector<double> next_rates() const;  // by parameter group, after the step that comes next
  // A rate that somebody has changed changes the later ones alike: by this. REQUIRES: there is a factor.
  double changed_by_hand(size_t group, double now) const;
  void wait_for_first_steps();
  void gather_moments();

  const std::shared_ptr<Weights> weights_;
  const RateFactor factor_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  staleness::Rule rule_ = staleness::Rule::other;
  std::vector<Slice> slices_;
  std::vector<double> first_rates_, last_rates_;  // by parameter group
  at::Tensor velocity_, second_;
  bool moments_are_known_ = false;  // all that there are lie in those two
  std::set<size_t> waiting_;        // parameters that have not stepped yet
  int64_t steps_ = 0;
};

}  // namespace ddip::pipeline
