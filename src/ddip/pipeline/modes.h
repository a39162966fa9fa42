// Which layers train and which evaluate, as their owner has set them: a batch norm may be left in evaluation while the
// rest trains.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace ddip::pipeline {

// As long as it lives the modules evaluate; then each layer is what it was.
class Evaluating {
 public:
  explicit Evaluating(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);
  ~Evaluating();
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

// Modules whose layers all evaluate have been left so by somebody's evaluation, and train now.
void make_train(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

}  // namespace ddip::pipeline
