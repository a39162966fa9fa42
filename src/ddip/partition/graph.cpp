#include "ddip/partition/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"

namespace ddip::partition {
namespace {

void check_nodes(const std::vector<Node>& nodes) {
  if (nodes.empty()) throw ConfigError("the model has no layer");
  std::set<std::string_view> names;
  for (const Node& node : nodes) {
    if (node.name.empty()) throw ConfigError("a layer has no name");
    if (!names.insert(node.name).second) throw ConfigError(fmt::format("two layers are called {}", node.name));
    for (double ms : {node.forward_ms, node.backward_ms})
      if (!(ms >= 0 && ms <= kMostMs))
        throw ConfigError(fmt::format("layer {} takes {} ms; expected a time from 0 to {:g}", node.name, ms, kMostMs));
  }
}

void check_edges(const std::vector<Node>& nodes, const std::vector<Edge>& edges) {
  for (const Edge& edge : edges) {
    if (edge.from >= nodes.size() || edge.to >= nodes.size())
      throw ConfigError(fmt::format("an edge joins layers {} and {} of {}", edge.from, edge.to, nodes.size()));
    if (edge.from == edge.to) throw ConfigError(fmt::format("layer {} needs its own output", nodes[edge.from].name));
  }
}

// Of all together: a stage holds what several layers keep, for as many micro-batches as there are stages.
void check_bytes(const std::vector<Node>& nodes, const std::vector<Edge>& edges) {
  double all = 0;
  for (const Node& node : nodes)
    all += static_cast<double>(node.parameter_bytes) + static_cast<double>(node.activation_bytes);
  for (const Edge& edge : edges) all += static_cast<double>(edge.bytes);
  if (const double most = static_cast<double>(kMostBytes); all * static_cast<double>(nodes.size()) > 64 * most)
    throw ConfigError(fmt::format("{} layers have {:g} bytes; expected at most {:g} together", nodes.size(), all,
                                  64 * most / static_cast<double>(nodes.size())));
}

// REQUIRES: edges of one value side by side.
void check_values(const std::vector<Node>& nodes, const std::vector<Edge>& edges) {
  std::map<std::string_view, size_t> maker;
  for (size_t index = 0; index < edges.size(); ++index) {
    const Edge& edge = edges[index];
    auto [place, first] = maker.emplace(edge.value, edge.from);
    if (!first && place->second != edge.from)
      throw ConfigError(fmt::format("value {} comes from both {} and {}", edge.value, nodes[place->second].name,
                                    nodes[edge.from].name));
    if (first) continue;
    const Edge& before = edges[index - 1];
    if (before.to == edge.to)
      throw ConfigError(fmt::format("the edge of {} from {} to {} is there twice", edge.value, nodes[edge.from].name,
                                    nodes[edge.to].name));
    if (before.shape != edge.shape || before.bytes != edge.bytes)
      throw ConfigError(fmt::format("value {} of layer {} is {} ({} bytes) for {} and {} ({} bytes) for {}", edge.value,
                                    nodes[edge.from].name, before.shape, before.bytes, nodes[before.to].name,
                                    edge.shape, edge.bytes, nodes[edge.to].name));
  }
}

}  // namespace

Graph::Graph(std::vector<Node> nodes, std::vector<Edge> edges) : nodes_(std::move(nodes)), edges_(std::move(edges)) {
  check_nodes(nodes_);
  check_edges(nodes_, edges_);
  check_bytes(nodes_, edges_);
  for (Edge& edge : edges_)
    if (edge.value.empty()) edge.value = nodes_[edge.from].name;
  std::sort(edges_.begin(), edges_.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.from, a.value, a.to) < std::tie(b.from, b.value, b.to);
  });
  check_values(nodes_, edges_);
  sort_topologically();
}

void Graph::sort_topologically() {
  std::vector<size_t> missing(nodes_.size());
  std::vector<std::vector<size_t>> after(nodes_.size());
  for (const Edge& edge : edges_) {
    ++missing[edge.to];
    after[edge.from].push_back(edge.to);
  }
  std::set<size_t> ready;
  for (size_t node = 0; node < nodes_.size(); ++node)
    if (missing[node] == 0) ready.insert(node);
  while (!ready.empty()) {
    const size_t node = *ready.begin();
    ready.erase(ready.begin());
    order_.push_back(node);
    for (size_t next : after[node])
      if (--missing[next] == 0) ready.insert(next);
  }
  if (order_.size() == nodes_.size()) return;
  // Each layer that is left waits for one that is left: following those backwards must come round.
  std::vector<size_t> path;
  std::vector<bool> seen(nodes_.size());
  size_t at = static_cast<size_t>(std::find_if(missing.begin(), missing.end(), [](size_t count) { return count > 0; }) -
                                  missing.begin());
  while (!seen[at]) {
    seen[at] = true;
    path.push_back(at);
    for (const Edge& edge : edges_)
      if (edge.to == at && missing[edge.from] > 0) {
        at = edge.from;
        break;
      }
  }
  std::string circle = nodes_[at].name;
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    circle += " → " + nodes_[*node].name;
    if (*node == at) break;
  }
  throw ConfigError(fmt::format("the layers wait for each other in a circle: {}", circle));
}

bool Graph::is_chain() const {
  if (edges_.size() + 1 != nodes_.size()) return false;
  std::vector<size_t> place(nodes_.size());
  for (size_t index = 0; index < order_.size(); ++index) place[order_[index]] = index;
  std::vector<bool> fed(nodes_.size());
  for (const Edge& edge : edges_) {
    if (place[edge.to] != place[edge.from] + 1 || fed[edge.to]) return false;
    fed[edge.to] = true;
  }
  return true;
}

size_t Graph::index_of(std::string_view name) const {
  std::vector<std::string> names;
  for (size_t index = 0; index < nodes_.size(); ++index) {
    if (nodes_[index].name == name) return index;
    names.push_back(nodes_[index].name);
  }
  throw ConfigError(fmt::format("there is no layer {}{}", name, did_you_mean(name, names)));
}

}  // namespace ddip::partition
