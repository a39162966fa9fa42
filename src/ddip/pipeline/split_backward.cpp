#include "ddip/pipeline/split_backward.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>

#include <string_view>
#include <typeinfo>
#include <unordered_map>

namespace ddip::pipeline {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

class Remember : public torch::autograd::FunctionPreHook {
 public:
  explicit Remember(std::shared_ptr<variable_list> into) : into_(std::move(into)) {}
  variable_list operator()(const variable_list& gradients) override {
    *into_ = gradients;
    return gradients;
  }

 private:
  std::shared_ptr<variable_list> into_;
};

// Which nodes lead to an input.
class Reach {
 public:
  Reach(const edge_list& roots, const edge_list& inputs) {
    for (const Edge& input : inputs) leads_[input.function.get()] = true;
    for (const Edge& root : roots) visit(root.function.get());
  }

  bool leads(const Edge& edge) const { return edge.is_valid() && leads_.at(edge.function.get()); }
  const std::vector<Node*>& nodes() const { return nodes_; }  // that do, without the inputs themselves

 private:
  // Without recursion: a graph may be deeper than a thread's stack.
  void visit(Node* root) {
    struct Step {
      Node* node;
      size_t next;
    };
    if (!leads_.emplace(root, false).second) return;
    std::vector<Step> way{{root, 0}};
    while (!way.empty()) {
      Step& here = way.back();
      if (here.next < here.node->num_outputs()) {
        Node* below = here.node->next_edge(here.next++).function.get();
        if (below && leads_.emplace(below, false).second) way.push_back({below, 0});
        continue;
      }
      bool some = false;
      for (const Edge& edge : here.node->next_edges()) some |= leads(edge);
      leads_[here.node] = some;
      if (some) nodes_.push_back(here.node);
      way.pop_back();
    }
  }

  std::unordered_map<Node*, bool> leads_;
  std::vector<Node*> nodes_;
};

// What cannot be computed in two parts, or not without being noticed.
bool is_whole(Node& node) {
  // Known by name, because Python's part of torch is not linked to here.
  std::string_view type = typeid(node).name();
  if (type.find("PyNode") != type.npos || type.find("CppNode") != type.npos) return true;
  if (node.name().find("Rnn") != std::string::npos) return true;
  return !node.pre_hooks().empty() || !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty();
}

void run(const Roots& roots, bool keep_graph, const edge_list& only) {
  torch::autograd::Engine::get_default_engine().execute(roots.edges, roots.gradients, keep_graph,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true, only);
}

}  // namespace

std::unique_ptr<SplitBackward> SplitBackward::of(const Roots& roots, const edge_list& inputs, std::string& why) {
  why.clear();
  auto split = std::make_unique<SplitBackward>();
  Reach reach(roots.edges, inputs);
  for (Node* node : reach.nodes()) {
    Fork fork{Edge(node->getptr(), 0), {}, std::make_shared<variable_list>()};
    bool to_weights = false;
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      const Edge& next = node->next_edge(i);
      if (reach.leads(next))
        fork.to_inputs.push_back(i);
      else
        to_weights |= next.is_valid();
    }
    if (!to_weights) {
      split->between_.push_back(node);
      continue;
    }
    if (is_whole(*node)) {
      why = node->name();
      return nullptr;
    }
    split->forks_.push_back(std::move(fork));
  }
  if (split->forks_.empty()) return nullptr;
  for (size_t i = 0; i < roots.edges.size(); ++i) {
    if (reach.leads(roots.edges[i])) continue;
    split->to_weights_.edges.push_back(roots.edges[i]);
    split->to_weights_.gradients.push_back(roots.gradients[i]);
  }
  split->roots_ = roots;
  split->inputs_ = inputs;
  return split;
}

void SplitBackward::input_gradients() {
  for (Fork& fork : forks_) fork.node.function->add_pre_hook(std::make_unique<Remember>(fork.arrived));
  run(roots_, /*keep_graph=*/true, inputs_);
  for (Node* node : between_) node->release_variables();
  between_.clear();
  for (Fork& fork : forks_) {
    for (size_t i : fork.to_inputs) fork.node.function->next_edges()[i] = Edge();
    for (size_t i = 0; i < fork.arrived->size(); ++i) {
      if (!(*fork.arrived)[i].defined()) continue;
      to_weights_.edges.emplace_back(fork.node.function, static_cast<uint32_t>(i));
      to_weights_.gradients.push_back((*fork.arrived)[i]);
    }
    fork.arrived->clear();
  }
  roots_ = Roots();
  inputs_.clear();
}

void SplitBackward::weight_gradients() {
  Roots roots = std::move(to_weights_);
  forks_.clear();
  if (!roots.edges.empty()) run(roots, /*keep_graph=*/false, {});
}

}  // namespace ddip::pipeline
