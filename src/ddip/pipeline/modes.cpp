#include "ddip/pipeline/modes.h"

#include <algorithm>

namespace ddip::pipeline {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

Evaluating::Evaluating(const Modules& modules) {
  for (const auto& module : modules) {
    for (const auto& layer : module->modules()) before_.emplace_back(layer, layer->is_training());
    module->eval();
  }
}

Evaluating::~Evaluating() {
  // train() means all layers within as well; those come later in the list.
  for (const auto& [layer, trained] : before_) layer->train(trained);
}

void make_train(const Modules& modules) {
  // Those within: what holds them may be ours, made of somebody's layers.
  auto trains = [](const auto& layer) { return layer->children().empty() && layer->is_training(); };
  if (std::ranges::any_of(modules, [&](const auto& module) { return std::ranges::any_of(module->modules(), trains); }))
    return;
  for (const auto& module : modules) module->train();
}

}  // namespace ddip::pipeline
