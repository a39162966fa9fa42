#include "ddip/pipeline/graph.h"

#include <fmt/format.h>

#include <algorithm>

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
  if (node.name.find_first_not_of(" .") == std::string::npos || node.name.find('.') != std::string::npos)
    throw ConfigError(fmt::format("a graph's layer {:?}: expected a name without dots", node.name));
  if (std::ranges::any_of(nodes_, [&](const Node& other) { return other.name == node.name; }))
    throw ConfigError(fmt::format("a graph has {:?} twice: expected each name once", node.name));
  for (size_t read : node.reads) last_reader_[read] = nodes_.size();
  nodes_.push_back(std::move(node));
  last_reader_.push_back(0);
  return {nodes_.size() - 1, identity_};
}

Graph::Source Graph::input(std::string name) {
  return append({.name = std::move(name), .layer = std::nullopt, .reads = {}});
}

Graph::Source Graph::add(std::string name, Part layer, std::vector<Source> reads) {
  if (reads.empty()) throw ConfigError(fmt::format("a graph's layer {:?} reads nothing: expected something", name));
  Node node{.name = std::move(name), .layer = std::move(layer), .reads = {}};
  for (const Source& read : reads) {
    if (read.graph_ != identity_)
      throw ConfigError(fmt::format("a graph's layer {:?} reads what another graph has", node.name));
    node.reads.push_back(read.index());
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
    if (last_reader(layer) == 0) found.push_back(layer);
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

void Graph::run_layers(const std::vector<size_t>& layers, std::vector<Value>& values,
                       const std::vector<size_t>& sent) const {
  const auto contains = [](const std::vector<size_t>& some, size_t node) {
    return std::ranges::find(some, node) != some.end();
  };
  const auto is_read_after = [&](size_t node, size_t layer) {
    return last_reader(node) > layer || contains(sent, node);
  };
  std::vector<std::pair<size_t, int64_t>> watched;  // nodes, and how often they have been changed until now
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (!contains(layers, node) && is_read_after(node, layers.front()))
      watched.emplace_back(node, changes_of(values[node]));
  }
  for (size_t layer : layers) {
    const auto& [name, part, reads] = nodes_[layer];
    if (reads.size() == 1) {
      values[layer] = part->forward(values[reads[0]]);
    } else {
      Value::Tuple arguments;
      for (size_t read : reads) arguments.items.push_back(values[read]);
      values[layer] = part->forward(Value{std::move(arguments)});
    }
    for (const auto& [node, before] : watched) {
      if (!is_read_after(node, layer) || changes_of(values[node]) == before) continue;
      const size_t reader = last_reader(node);
      throw ConfigError(fmt::format(
          "layer {:?} changes {:?} in place, which {}, too: expected a layer that leaves it as it is", name,
          nodes_[node].name, reader == layer ? "another stage reads" : fmt::format("{:?} reads", nodes_[reader].name)));
    }
    if (is_read_after(layer, layer)) watched.emplace_back(layer, changes_of(values[layer]));
  }
}

Value Graph::run(const Value& x) const {
  const size_t last = result();
  std::vector<Value> values(nodes_.size());
  spread(x, values);
  run_layers(layers(), values);
  return values[last];
}

}  // namespace ddip::pipeline
