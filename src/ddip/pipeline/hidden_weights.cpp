#include "ddip/pipeline/hidden_weights.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace ddip::pipeline {
namespace {

// What a backward from here would give gradients to, but for what lies behind the inputs.
std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs) {
  std::set<const torch::autograd::Node*> known;
  for (const at::Tensor& tensor : inputs) {
    if (tensor.requires_grad()) known.insert(torch::autograd::impl::gradient_edge(tensor).function.get());
  }
  std::vector<torch::autograd::Node*> waiting;
  const auto add = [&](torch::autograd::Node* node) {
    if (node && known.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor& tensor : outputs) {
    if (tensor.requires_grad()) add(torch::autograd::impl::gradient_edge(tensor).function.get());
  }
  std::vector<at::Tensor> found;
  while (!waiting.empty()) {
    torch::autograd::Node& node = *waiting.back();
    waiting.pop_back();
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(&node)) found.push_back(leaf->variable);
    for (const torch::autograd::Edge& edge : node.next_edges()) add(edge.function.get());
  }
  return found;
}

}  // namespace

HiddenWeights::HiddenWeights(const std::vector<at::Tensor>& own,
                             const std::vector<std::pair<std::string, at::Tensor>>& others) {
  for (const at::Tensor& weight : own) own_.insert(weight.unsafeGetTensorImpl());
  for (const auto& [name, weight] : others) others_.emplace(weight.unsafeGetTensorImpl(), name);
}

std::optional<HiddenWeights::Found> HiddenWeights::look_at(const std::vector<at::Tensor>& inputs,
                                                           const std::vector<at::Tensor>& outputs) {
  if (is_done() || !at::GradMode::is_enabled()) return {};
  --left_;
  for (const at::Tensor& leaf : leaves_of(inputs, outputs)) {
    const at::TensorImpl* weight = leaf.unsafeGetTensorImpl();
    if (own_.contains(weight)) continue;
    if (auto other = others_.find(weight); other != others_.end()) return Found{other->second, leaf.numel()};
    if (!met_.insert(c10::weak_intrusive_ptr<at::TensorImpl>(leaf.getIntrusivePtr())).second)
      return Found{"", leaf.numel()};
  }
  return {};
}

}  // namespace ddip::pipeline
