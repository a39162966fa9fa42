#include "ddip/pipeline/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

// Goes up with each change in place, also through a view. What inference mode made counts nothing.
int64_t changes_of(const Value& value) {
  int64_t changes = 0;
  for (const at::Tensor& tensor : tensors_of(value)) {
    if (!tensor.is_inference()) changes += static_cast<int64_t>(tensor._version());
  }
  return changes;
}

}  // namespace

Graph::Source Graph::append(Node node) {
  if (node.name.find_first_not_of(' ') == std::string::npos)
    throw ConfigError(fmt::format("a graph's layer {:?}: expected a name", node.name));
  if (node.name.find('.') != std::string::npos)
    throw ConfigError(fmt::format("a graph's layer {:?}: expected a name without dots", node.name));
  if (std::ranges::any_of(nodes_, [&](const Node& other) { return other.name == node.name; }))
    throw ConfigError(fmt::format("a graph has {:?} twice: expected each name once", node.name));
  for (size_t read : node.reads) {
    std::vector<size_t>& readers = readers_[read];
    if (readers.empty() || readers.back() != nodes_.size()) readers.push_back(nodes_.size());
  }
  nodes_.push_back(std::move(node));
  readers_.emplace_back();
  return {nodes_.size() - 1, nodes_.back().identity};
}

Graph::Source Graph::input(std::string name) {
  return append({.name = std::move(name), .layer = std::nullopt, .reads = {}});
}

Graph::Source Graph::add(std::string name, Part layer, std::vector<Source> reads) {
  if (reads.empty()) throw ConfigError(fmt::format("a graph's layer {:?} reads nothing: expected something", name));
  Node node{.name = std::move(name), .layer = std::move(layer), .reads = {}};
  for (const Source& read : reads) {
    if (read.index_ >= nodes_.size() || nodes_[read.index_].identity != read.node_)
      throw ConfigError(fmt::format("a graph's layer {:?} reads what another graph has", node.name));
    node.reads.push_back(read.index_);
  }
  return append(std::move(node));
}

std::vector<size_t> Graph::inputs() const {
  std::vector<size_t> found;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].layer) found.push_back(i);
  }
  return found;
}

std::vector<size_t> Graph::layers() const {
  std::vector<size_t> found;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].layer) found.push_back(i);
  }
  return found;
}

size_t Graph::result() const {
  std::vector<size_t> found;
  for (size_t layer : layers()) {
    if (readers(layer).empty()) found.push_back(layer);
  }
  if (found.empty()) throw ConfigError("a graph has no layer: expected some");
  if (found.size() > 1)
    throw ConfigError(fmt::format("nothing reads {:?} and {:?} of a graph: expected one result, that of the last layer",
                                  nodes_[found[0]].name, nodes_[found[1]].name));
  return found[0];
}

void Graph::spread(const Value& x, std::vector<Value>& values) const {
  const std::vector<size_t> places = inputs();
  if (places.size() == 1) {
    values[places[0]] = x;
    return;
  }
  const std::vector<Value>& items =
      items_of(x, "a tuple with an item for each of the graph's inputs", static_cast<int64_t>(places.size()));
  for (size_t i = 0; i < places.size(); ++i) values[places[i]] = items[i];
}

namespace {

// With the layer's name, if it says in its own words what went wrong.
Value called(const Graph::Node& node, const Value& given) {
  try {
    return node.layer->forward(given);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("layer {:?}: {}", node.name, error.what()));
  } catch (c10::Error& error) {
    error.add_context(fmt::format("in layer {:?}", node.name));
    throw;
  }
}

}  // namespace

std::vector<at::Tensor> Graph::run_layers(const std::vector<size_t>& layers, std::vector<Value>& values) const {
  std::vector<at::Tensor> losses;
  std::map<size_t, int64_t> changes;  // by node that several layers read: how often it has been changed until now
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (readers(node).size() > 1) changes[node] = changes_of(values[node]);
  }
  for (size_t layer : layers) {
    const Node& here = nodes_[layer];
    Value given;
    if (here.reads.size() == 1) {
      given = values[here.reads[0]];
    } else {
      Value::Tuple arguments;
      for (size_t read : here.reads) arguments.items.push_back(values[read]);
      given = Value{std::move(arguments)};
    }
    values[layer] = called(here, given);
    if (here.layer->auxiliary_losses) {
      for (at::Tensor& loss : here.layer->auxiliary_losses()) losses.push_back(std::move(loss));
    }
    for (auto& [node, before] : changes) {
      if (node == layer) {
        before = changes_of(values[node]);
      } else if (changes_of(values[node]) != before) {
        const std::vector<size_t>& others = readers(node);
        const size_t other = others.back() == layer ? others.front() : others.back();
        throw ConfigError(fmt::format(
            "layer {:?} changes {:?} in place, which {:?} reads, too: expected a layer that leaves it as it is",
            here.name, nodes_[node].name, nodes_[other].name));
      }
    }
  }
  return losses;
}

Value Graph::run(const Value& x) const {
  const size_t last = result();
  std::vector<Value> values(nodes_.size());
  spread(x, values);
  run_layers(layers(), values);
  return values[last];
}

}  // namespace ddip::pipeline
