#include "ddip/pipeline/hidden_weights.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace ddip::pipeline {
namespace {

torch::autograd::Node* node_of(const at::Tensor& tensor) {
  return tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor).function.get() : nullptr;
}

// What a backward from here would give gradients to, but for what lies behind the inputs.
std::vector<at::Tensor> leaves_of(std::set<const torch::autograd::Node*> known,
                                  const std::vector<at::Tensor>& outputs) {
  std::vector<torch::autograd::Node*> waiting;
  const auto add = [&](torch::autograd::Node* node) {
    if (known.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor& tensor : outputs) add(node_of(tensor));
  std::vector<at::Tensor> found;
  while (!waiting.empty()) {
    torch::autograd::Node* node = waiting.back();
    waiting.pop_back();
    if (!node) continue;  // what wants no gradient
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) found.push_back(leaf->variable);
    for (const torch::autograd::Edge& edge : node->next_edges()) add(edge.function.get());
  }
  return found;
}

}  // namespace

HiddenWeights::HiddenWeights(const std::vector<at::Tensor>& own,
                             const std::vector<std::pair<std::string, at::Tensor>>& others) {
  for (const at::Tensor& weight : own) own_.insert(weight.unsafeGetTensorImpl());
  for (const auto& [name, weight] : others) others_.emplace(weight.unsafeGetTensorImpl(), name);
}

void HiddenWeights::enter(const std::vector<at::Tensor>& inputs) {
  known_.clear();
  if (is_done() || !at::GradMode::is_enabled()) return;
  for (const at::Tensor& tensor : inputs) {
    if (auto* node = node_of(tensor)) known_.insert(node);
  }
}

std::optional<HiddenWeights::Found> HiddenWeights::leave(const std::vector<at::Tensor>& outputs) {
  if (is_done() || !at::GradMode::is_enabled()) return {};
  for (const at::Tensor& leaf : leaves_of(std::exchange(known_, {}), outputs)) {
    const at::TensorImpl* weight = leaf.unsafeGetTensorImpl();
    if (own_.contains(weight)) continue;
    if (auto other = others_.find(weight); other != others_.end()) return Found{other->second, leaf.numel()};
    if (!met_.insert(c10::weak_intrusive_ptr<at::TensorImpl>(leaf.getIntrusivePtr())).second)
      return Found{"", leaf.numel()};
  }
  --left_;  // only now: who runs again after an error is refused again
  return {};
}

}  // namespace ddip::pipeline
