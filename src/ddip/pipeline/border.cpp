#include "ddip/pipeline/border.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ddip/base/error.h"

namespace ddip::pipeline {

// Catches the gradient of one tensor.
struct Entry::Node : torch::autograd::Node {
  explicit Node(std::shared_ptr<Catch> into) : into_(std::move(into)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    into_->gradient = std::move(gradients[0]);
    return {};
  }
  std::string name() const override { return "StageInput"; }

 private:
  std::shared_ptr<Catch> into_;
};

namespace {

// Nodes are counted by torch's own pointers in newer versions, and by the standard library's in older ones.
template <typename Kind, typename Pointer = decltype(torch::autograd::Edge::function), typename... Arguments>
Pointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<Kind>(std::forward<Arguments>(arguments)...);
  else
    return c10::make_intrusive<Kind>(std::forward<Arguments>(arguments)...);
}

}  // namespace

Value Entry::enter(const Value& value) {
  caught_.clear();
  ends_.clear();
  return with_tensors(value, [this](const at::Tensor& tensor) {
    at::Tensor inside = tensor.detach();
    bool differentiable = (inside.is_floating_point() || inside.is_complex()) && at::GradMode::is_enabled();
    caught_.push_back(differentiable ? std::make_shared<Catch>() : nullptr);
    if (differentiable) {
      ends_.emplace_back(make_node<Node>(caught_.back()), 0);
      torch::autograd::create_gradient_edge(inside, ends_.back().function);
    }
    return inside;
  });
}

Value Entry::gradients() const {
  std::vector<Value> items;
  for (const auto& caught : caught_)
    items.push_back(caught && caught->gradient.defined() ? Value{caught->gradient} : Value{});
  return {Value::Tuple{std::move(items)}};
}

Exit::Exit(const Value& value) {
  for (const at::Tensor& tensor : tensors_of(value))
    places_.push_back({tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor) : torch::autograd::Edge(),
                       tensor.sizes().vec()});
}

void Exit::add_to(Roots& roots, const Value& gradients) const {
  const auto* items = std::get_if<Value::Tuple>(&gradients.content);
  if (!items || items->items.size() != places_.size())
    throw ConfigError(fmt::format("gradients {} came back for {} tensors", describe(gradients), places_.size()));
  for (size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor* gradient = items->items[i].tensor();
    if (!gradient || !places_[i].edge.is_valid()) continue;
    if (gradient->sizes() != at::IntArrayRef(places_[i].sizes))
      throw ConfigError(fmt::format("a gradient {} came back for a tensor [{}]", describe(items->items[i]),
                                    fmt::join(places_[i].sizes, ", ")));
    roots.edges.push_back(places_[i].edge);
    roots.gradients.push_back(*gradient);
  }
}

}  // namespace ddip::pipeline
