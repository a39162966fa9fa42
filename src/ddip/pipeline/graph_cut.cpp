#include "ddip/pipeline/graph_cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"

namespace ddip::pipeline {
namespace {

using Nodes = std::vector<size_t>;

// What crosses one edge: a node's value, or a tuple of several.
Value packed(const Nodes& nodes, const std::vector<Value>& values) {
  if (nodes.size() == 1) return values[nodes[0]];
  Value::Tuple several;
  for (size_t node : nodes) several.items.push_back(values[node]);
  return Value{std::move(several)};
}

void unpack(const Value& came, const Nodes& nodes, std::vector<Value>& values) {
  if (nodes.size() == 1) {
    values[nodes[0]] = came;
    return;
  }
  const std::vector<Value>& items = items_of(came, "a tuple", static_cast<int64_t>(nodes.size()));
  for (size_t i = 0; i < nodes.size(); ++i) values[nodes[i]] = items[i];
}

Nodes each_once(const std::vector<Nodes>& edges) {
  Nodes found;
  for (const Nodes& nodes : edges) {
    for (size_t node : nodes) {
      if (std::ranges::find(found, node) == found.end()) found.push_back(node);
    }
  }
  return found;
}

struct StageOfGraph {
  std::shared_ptr<const Graph> graph;
  Nodes layers;
  std::vector<Nodes> incoming, outgoing;  // by edge, in the order of the list of edges
  bool first = false;
  // Of the newest forward, until they are asked for.
  std::shared_ptr<std::vector<at::Tensor>> losses = std::make_shared<std::vector<at::Tensor>>();

  Value operator()(const Value& given) const {
    std::vector<Value> values(graph->nodes().size());
    if (first) {
      graph->spread(given, values);
    } else if (incoming.size() == 1) {
      unpack(given, incoming[0], values);
    } else {
      const auto& arguments = items_of(given, "a value from each edge", static_cast<int64_t>(incoming.size()));
      for (size_t edge = 0; edge < incoming.size(); ++edge) unpack(arguments[edge], incoming[edge], values);
    }
    *losses = graph->run_layers(layers, values);
    if (outgoing.empty()) return values[layers.back()];
    if (outgoing.size() == 1) return packed(outgoing[0], values);
    Value::Tuple each;
    for (const Nodes& nodes : outgoing) each.items.push_back(packed(nodes, values));
    return Value{std::move(each)};
  }
};

// A module that several layers use is there once.
std::shared_ptr<torch::nn::Module> module_of(const Graph& graph, const Nodes& layers) {
  auto all = std::make_shared<torch::nn::Module>("Layers");
  std::set<const torch::nn::Module*> seen;
  for (size_t layer : layers) {
    const auto& [name, part, reads, identity] = graph.nodes()[layer];
    if (part->module && seen.insert(part->module.get()).second) all->register_module(name, part->module);
  }
  return seen.empty() ? nullptr : all;
}

bool has_losses(const Graph& graph, const Nodes& layers) {
  return std::ranges::any_of(layers,
                             [&](size_t layer) { return graph.nodes()[layer].layer->auxiliary_losses != nullptr; });
}

std::vector<std::string> names_of(const Graph& graph, const Nodes& nodes) {
  std::vector<std::string> found;
  for (size_t node : nodes) found.push_back(graph.nodes()[node].name);
  return found;
}

Part part_of(const Graph& graph, const StageOfGraph& stage) {
  const std::vector<std::string> names = names_of(graph, stage.layers);
  const Nodes takes = stage.first ? graph.inputs() : each_once(stage.incoming), gives = each_once(stage.outgoing);
  Part part(module_of(graph, stage.layers), [stage](const Value& given) { return stage(given); });
  if (has_losses(graph, stage.layers))
    part.auxiliary_losses = [losses = stage.losses] { return std::exchange(*losses, {}); };
  part.name = names.size() == 1 ? names[0] : fmt::format("{} … {}", names.front(), names.back());
  part.prefix = "";
  part.layers = names;
  part.takes = names_of(graph, takes);
  part.gives = gives.empty() ? std::vector<std::string>{names.back()} : names_of(graph, gives);
  return part;
}

[[noreturn]] void refuse_unknown(const Graph& graph, const std::string& name) {
  throw ConfigError(fmt::format("a stage has {:?}, which is no layer of the graph{}", name,
                                did_you_mean(name, names_of(graph, graph.layers()))));
}

}  // namespace

GraphCut cut_by(const Graph& graph, const std::vector<size_t>& stage_of) {
  graph.result();  // says what is wrong with it
  const auto shared = std::make_shared<const Graph>(graph);
  const Nodes layers = graph.layers();
  std::map<size_t, size_t> home;  // of inputs: the first stage
  for (size_t node : graph.inputs()) home[node] = 0;
  for (size_t i = 0; i < layers.size(); ++i) home[layers[i]] = stage_of[i];
  std::map<std::pair<size_t, size_t>, std::set<size_t>> crossing;  // the edges, in order, and the nodes on each
  for (size_t layer : layers) {
    for (size_t read : graph.nodes()[layer].reads) {
      if (home[read] != home[layer]) crossing[{home[read], home[layer]}].insert(read);
    }
  }
  GraphCut made;
  for (size_t index = 0; index <= std::ranges::max(stage_of); ++index) {
    StageOfGraph stage{.graph = shared, .layers = {}, .incoming = {}, .outgoing = {}, .first = index == 0};
    for (size_t layer : layers) {
      if (home[layer] == index) stage.layers.push_back(layer);
    }
    for (const auto& [edge, nodes] : crossing) {
      if (edge.second == index) stage.incoming.emplace_back(nodes.begin(), nodes.end());
      if (edge.first == index) stage.outgoing.emplace_back(nodes.begin(), nodes.end());
    }
    made.parts.push_back(part_of(graph, stage));
  }
  for (const auto& [edge, nodes] : crossing)
    made.edges.push_back({static_cast<int>(edge.first), static_cast<int>(edge.second)});
  return made;
}

GraphCut cut(const Graph& graph, const std::vector<std::vector<std::string>>& stages) {
  const Nodes layers = graph.layers();
  std::map<std::string, size_t> stage_of;
  const std::vector<std::string> known = names_of(graph, layers);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage].empty()) throw ConfigError(fmt::format("stage {} has no layer: expected some", stage));
    for (const std::string& name : stages[stage]) {
      if (std::ranges::find(known, name) == known.end()) refuse_unknown(graph, name);
      if (auto [place, is_new] = stage_of.try_emplace(name, stage); !is_new)
        throw ConfigError(place->second == stage
                              ? fmt::format("layer {:?} is in stage {} twice", name, stage)
                              : fmt::format("layer {:?} is in stage {} and in stage {}", name, place->second, stage));
    }
  }
  std::vector<size_t> by_layer;
  for (size_t layer : layers) {
    const auto& [name, part, reads, identity] = graph.nodes()[layer];
    if (!stage_of.contains(name)) throw ConfigError(fmt::format("layer {:?} is in no stage", name));
    by_layer.push_back(stage_of[name]);
    for (size_t read : reads) {
      const std::string& from = graph.nodes()[read].name;
      if (graph.nodes()[read].layer && stage_of[from] > stage_of[name])
        throw ConfigError(fmt::format("layer {:?} of stage {} reads {:?} of stage {}: expected it in an earlier stage",
                                      name, stage_of[name], from, stage_of[from]));
    }
  }
  graph.result();
  return cut_by(graph, by_layer);
}

GraphCut cut(const Graph& graph, int stages) {
  const size_t layers = graph.layers().size();
  if (stages < 1 || static_cast<size_t>(stages) > layers)
    throw ConfigError(fmt::format("{} stages of a graph with {} layers: expected at most {}", stages, layers, layers));
  std::vector<size_t> by_layer;
  for (int stage = 0; stage < stages; ++stage) {
    const double end = static_cast<double>(stage + 1) * static_cast<double>(layers) / stages;
    by_layer.resize(static_cast<size_t>(std::nearbyint(end)), static_cast<size_t>(stage));
  }
  return cut_by(graph, by_layer);
}

void require_edges_of_graph(const std::vector<Part>& parts, const std::vector<schedule::Edge>& edges) {
  if (std::ranges::all_of(parts, [](const Part& one) { return one.takes.empty(); })) return;
  if (!std::ranges::is_sorted(edges, {}, [](const schedule::Edge& edge) { return std::pair(edge.from, edge.to); }))
    throw ConfigError("edges of a graph's stages: expected those that cut() gave, in their order");
  std::vector<std::set<std::string>> brought(parts.size());
  for (const auto& [from, to] : edges) {
    const auto& given = parts.at(static_cast<size_t>(from)).gives;
    brought.at(static_cast<size_t>(to)).insert(given.begin(), given.end());
    const auto& taken = parts.at(static_cast<size_t>(to)).takes;
    if (std::ranges::none_of(given,
                             [&](const std::string& name) { return std::ranges::find(taken, name) != taken.end(); }))
      throw ConfigError(fmt::format(
          "edge {} -> {}: stage {} of a graph takes nothing that stage {} gives: expected the edges that cut() gave",
          from, to, to, from));
  }
  for (size_t stage = 1; stage < parts.size(); ++stage) {
    for (const std::string& name : parts[stage].takes) {
      if (!brought[stage].contains(name))
        throw ConfigError(fmt::format(
            "stage {} of a graph takes {:?}, which no edge brings: expected the edges that cut() gave", stage, name));
    }
  }
}

}  // namespace ddip::pipeline
