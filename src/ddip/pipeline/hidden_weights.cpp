#include "ddip/pipeline/hidden_weights.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

// What a backward from here would give gradients to, but for what lies behind the inputs.
std::vector<at::Tensor> leaves_of(const std::vector<Value>& inputs, const std::vector<Value>& outputs) {
  std::set<const torch::autograd::Node*> known;
  for (const Value& input : inputs) {
    for (const at::Tensor& tensor : tensors_of(input)) {
      if (tensor.requires_grad()) known.insert(torch::autograd::impl::gradient_edge(tensor).function.get());
    }
  }
  std::vector<torch::autograd::Node*> waiting;
  const auto add = [&](torch::autograd::Node* node) {
    if (node && known.insert(node).second) waiting.push_back(node);
  };
  for (const Value& output : outputs) {
    for (const at::Tensor& tensor : tensors_of(output)) {
      if (tensor.requires_grad()) add(torch::autograd::impl::gradient_edge(tensor).function.get());
    }
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

HiddenWeights::HiddenWeights(const std::vector<Part>& parts, int stage)
    : name_(fmt::format("stage {} ({})", stage, parts.at(static_cast<size_t>(stage)).name)) {
  for (size_t other = 0; other < parts.size(); ++other) {
    for (const auto& [name, tensor] : parameters_of(parts[other])) {
      if (static_cast<int>(other) == stage)
        own_.insert(tensor.unsafeGetTensorImpl());
      else
        others_[tensor.unsafeGetTensorImpl()] = fmt::format("{} of stage {}", name, other);
    }
  }
}

void HiddenWeights::look_at(const std::vector<Value>& inputs, const std::vector<Value>& outputs) {
  if (left_ == 0 || !at::GradMode::is_enabled()) return;
  --left_;
  for (const at::Tensor& leaf : leaves_of(inputs, outputs)) {
    const at::TensorImpl* weight = leaf.unsafeGetTensorImpl();
    if (own_.contains(weight)) continue;
    if (auto other = others_.find(weight); other != others_.end())
      throw ConfigError(fmt::format(
          "{} computes with {}, past its module, and would not train it: expected the weight in one stage, or "
          "lent to the other one as a value of a pipeline::Graph",
          name_, other->second));
    if (!met_.insert(c10::weak_intrusive_ptr<at::TensorImpl>(leaf.getIntrusivePtr())).second)
      throw ConfigError(
          fmt::format("{} computes with a weight of {} elements that is in no stage's module, and would not train it: "
                      "expected Part(module, function)",
                      name_, leaf.numel()));
  }
}

}  // namespace ddip::pipeline
