// An optimizer of torch::optim as tensors with names, and back: the options of its groups and what it carries from step
// to step. torch's own way would be an archive that has to be unpickled.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>

#include "ddip/pipeline/saved_tensors.h"

namespace ddip::pipeline {

// SGD, Adam, AdamW, RMSprop or Adagrad. Throws ConfigError for any other: what it carries is not known.
std::string kind_of(const torch::optim::Optimizer& optimizer);

// Groups and parameters have their numbers: "group.0.lr", "state.3.exp_avg". The tensors are the optimizer's own.
NamedTensors optimizer_state(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters);

// Takes it, with names that begin with `prefix`. Throws ConfigError if it is another optimizer's; the optimizer changes
// only when what this returns is called, once.
std::function<void()> restored_optimizer(SavedTensors& saved, const std::string& prefix,
                                         torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters);

}  // namespace ddip::pipeline
