#include "ddip/pipeline/measured.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"
#include "ddip/partition/placement.h"
#include "ddip/pipeline/channel.h"
#include "ddip/pipeline/gather.h"
#include "ddip/pipeline/graph_cost.h"
#include "ddip/pipeline/graph_cut.h"
#include "ddip/pipeline/layer_cost.h"
#include "ddip/pipeline/link_speed.h"
#include "ddip/schedule/window.h"

namespace ddip::pipeline {
namespace {

using nlohmann::json;

void require_edges(const std::vector<schedule::Edge>& edges, size_t stages) {
  const auto last = static_cast<int>(stages) - 1;
  for (const auto& [from, to] : edges) {
    if (from < 0 || to > last || from >= to)
      throw ConfigError(fmt::format("edge {} -> {}: expected a stage and a later one of {}", from, to, stages));
  }
}

// By part: whether gradients are asked of what comes to it, because something before it is trained.
std::vector<bool> give_gradients(const std::vector<Part>& parts, const std::vector<schedule::Edge>& edges) {
  std::vector<bool> found(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const auto& [from, to] : edges) {
      const auto before = static_cast<size_t>(from);
      if (static_cast<size_t>(to) == i && (found[before] || trained_elements(parts[before]) > 0)) found[i] = true;
    }
  }
  return found;
}

// Stages that have run once, and what went from one to another.
struct Tried {
  std::vector<LayerCost> layers;
  std::vector<uint64_t> edge_bytes;
};

Tried tried(const std::vector<Part>& parts, const Value& example, const std::vector<schedule::Edge>& edges) {
  Tried found{.layers = {}, .edge_bytes = std::vector<uint64_t>(edges.size())};
  found.layers.reserve(parts.size());
  std::vector<Value> on_edge(edges.size());
  const at::Device elsewhere = device_of(parts);
  const std::vector<bool> gradients = give_gradients(parts, edges);
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<Value> inputs;
    std::vector<size_t> outgoing;
    for (size_t edge = 0; edge < edges.size(); ++edge) {
      if (edges[edge].to == static_cast<int>(i)) inputs.push_back(on_edge[edge]);
      if (edges[edge].from == static_cast<int>(i)) outgoing.push_back(edge);
    }
    if (i == 0) inputs = {example};
    if (inputs.empty()) throw ConfigError(fmt::format("edges: nothing leads to stage {}", i));
    LayerCost::Place place{.name = fmt::format("stage {} ({})", i, parts[i].name),
                           .elsewhere = elsewhere,
                           .outgoing = outgoing.size(),
                           .gives_gradients = gradients[i]};
    LayerCost& layer = found.layers.emplace_back(parts[i], std::move(place), std::move(inputs));
    for (size_t out = 0; out < outgoing.size(); ++out) {
      on_edge[outgoing[out]] = layer.outputs().at(out);
      found.edge_bytes[outgoing[out]] = bytes_of(layer.outputs()[out]);
    }
  }
  return found;
}

// What rank 0 found, on all ranks.
json of_rank_0(tensors::Communicator& ranks, const std::function<json()>& work) {
  return agreed(ranks, [&] { return ranks.rank() == 0 ? work() : json(); })[0];
}

// A backward is measured whole; its two parts are about as long as each other.
schedule::StageCost stage_cost(double forward, double backward) {
  return {.forward = forward, .backward = backward / 2, .weight_gradient = backward / 2};
}

// Stages that take less time are better, and so are fewer of them on a rank.
partition::Cut cut_of(const partition::Graph& graph, size_t ranks, const std::string& placement,
                      const partition::Costs& costs) {
  partition::check_costs(costs);
  if (placement == "mixed") return partition::cut_mixed(graph, ranks, costs);
  if (placement == "single") return partition::cut_model(graph, ranks, costs);
  if (auto found = partition::cut_mirrored(graph, ranks, costs)) return *found;
  throw ConfigError(fmt::format(
      "placement=\"mirrored\": nothing of this graph lies beside its mirror on {} ranks{}; expected skips "
      "from its beginning to its end, or \"mixed\"",
      ranks, costs.memory_cap == 0 ? "" : fmt::format(" in {} each", partition::bytes_in_words(costs.memory_cap))));
}

// The rank of each stage, the stage of each layer, and what stages and the edges between them take.
json described(const GraphCost& cost, const partition::Cut& cut, const partition::Costs& costs) {
  const double link = costs.link_bytes_per_ms;
  const partition::Graph& graph = cost.graph;
  std::vector<double> forward(cut.stages()), backward(cut.stages());
  for (size_t group = 0; group < graph.nodes().size(); ++group) {
    forward[cut.stage_of[group]] += graph.nodes()[group].forward_ms;
    backward[cut.stage_of[group]] += graph.nodes()[group].backward_ms;
  }
  for (size_t stage = 0; costs.recompute && stage + 1 < cut.stages(); ++stage) backward[stage] += forward[stage];
  // A value that several layers of a stage read is sent once.
  std::map<std::pair<size_t, size_t>, std::map<std::string, uint64_t>> sent;
  std::set<std::string> inputs;
  for (const auto& [input, group, bytes] : cost.inputs) {
    inputs.insert(input);
    if (cut.stage_of[group] > 0) sent[{0, cut.stage_of[group]}][input] = bytes;
  }
  for (const partition::Edge& edge : graph.edges()) {
    const size_t from = cut.stage_of[edge.from], to = cut.stage_of[edge.to];
    if (from != to && !inputs.contains(edge.value)) sent[{from, to}][edge.value] = edge.bytes;
  }
  json links = json::array();
  std::vector<double> came(cut.stages());
  for (const auto& [stages, values] : sent) {
    double bytes = 0;
    for (const auto& [name, size] : values) bytes += static_cast<double>(size);
    came[stages.second] += bytes;
    links.push_back({stages.first, stages.second, link > 0 ? bytes / link : 0});
  }
  // Bytes: what a stage always has, and what it keeps of each micro-batch that is under way.
  std::vector<double> held(cut.stages()), of_each(cut.stages());
  for (size_t group = 0; group < graph.nodes().size(); ++group) {
    const size_t stage = cut.stage_of[group];
    const bool again = costs.recompute && stage + 1 < cut.stages();
    held[stage] += static_cast<double>(costs.held(graph.nodes()[group].parameter_bytes));
    (again ? held : of_each)[stage] += static_cast<double>(graph.nodes()[group].activation_bytes);
    if (again) of_each[stage] = came[stage];
  }
  std::vector<size_t> stage_of;
  for (size_t group : cost.group_of) stage_of.push_back(cut.stage_of[group]);
  return {{"stage_of", stage_of}, {"rank_of", cut.device_of}, {"forward", forward},
          {"backward", backward}, {"links", links},           {"held", held},
          {"of_each", of_each}};
}

// Empty if what is under way by the window that the links ask for fits into a rank. Else the textbook's, by which the
// cut was found.
std::vector<int> window_within(double memory_cap, const MeasuredCut& made, const json& found) {
  const schedule::Request request = schedule::completed({.stages = static_cast<int>(made.parts.size()),
                                                         .rank_of_stage = found["rank_of"].get<std::vector<int>>(),
                                                         .edges = made.edges,
                                                         .costs = made.costs});
  const std::vector<int> wide = schedule::default_window(request);
  std::map<int, double> held;
  for (size_t stage = 0; stage < made.parts.size(); ++stage)
    held[request.rank_of_stage[stage]] +=
        found["held"][stage].get<double>() + found["of_each"][stage].get<double>() * (wide[stage] + 1);
  for (const auto& [rank, bytes] : held) {
    if (bytes > memory_cap) return schedule::depths(request);
  }
  return {};
}

void require_options(const CutOptions& options, int ranks, int world) {
  static const std::vector<std::string> placements = {"single", "mixed", "mirrored"};
  if (std::ranges::find(placements, options.placement) == placements.end())
    throw ConfigError(fmt::format("placement={:?}: expected {}{}", options.placement, fmt::join(placements, ", "),
                                  did_you_mean(options.placement, placements)));
  if (options.placement == "single" && ranks > world && options.memory_cap > 0)
    throw ConfigError(
        fmt::format("memory_cap with {} stages on {} ranks: expected a stage for each rank, or "
                    "placement=\"mixed\", which reckons with several",
                    ranks, world));
  if (options.placement != "single" && ranks > world)
    throw ConfigError(fmt::format("placement={:?} on {} ranks: there are {}", options.placement, ranks, world));
}

struct FoundCut {
  MeasuredCut made;
  std::vector<size_t> stage_of;  // by layer
};

FoundCut found_cut(tensors::Communicator& ranks, const Graph& graph, const Value& example, const CutOptions& options) {
  require_messages(ranks);
  graph.result();  // says what is wrong with it
  const int pieces = options.stages == 0 ? ranks.world() : options.stages;
  require_options(options, pieces, ranks.world());
  static_cast<void>(cut(graph, pieces));  // says what is wrong with the number
  const double link = link_bytes_per_ms(ranks, device_of(parts_of(graph)));
  const json found = of_rank_0(ranks, [&]() -> json {
    const GraphCost cost = measured(graph, example, options.memory_cap > 0);
    if (const size_t most = cost.graph.nodes().size(); static_cast<size_t>(pieces) > most)
      throw ConfigError(
          fmt::format("{} stages of a graph with {} layers, of which some share weights or buffers and stay together "
                      "with all between them: expected at most {}",
                      pieces, cost.group_of.size(), most));
    const partition::Costs costs{
        .link_bytes_per_ms = link, .recompute = options.recompute, .memory_cap = options.memory_cap};
    return described(cost, cut_of(cost.graph, static_cast<size_t>(pieces), options.placement, costs), costs);
  });
  auto stage_of = found["stage_of"].get<std::vector<size_t>>();
  auto [parts, edges] = cut_by(graph, stage_of);
  MeasuredCut made{.parts = std::move(parts), .edges = std::move(edges), .placement = {}, .costs = {}, .window = {}};
  if (options.placement != "single") made.placement = found["rank_of"].get<std::vector<int>>();
  for (size_t stage = 0; stage < made.parts.size(); ++stage)
    made.costs.stages.push_back(stage_cost(found["forward"][stage], found["backward"][stage]));
  for (const schedule::Edge& edge : made.edges) {
    const auto link_of =
        std::ranges::find_if(found["links"], [&](const json& one) { return one[0] == edge.from && one[1] == edge.to; });
    DDIP_CHECK(link_of != found["links"].end(), "an edge carries something");
    made.costs.links.push_back((*link_of)[2]);
  }
  if (options.memory_cap > 0) made.window = window_within(static_cast<double>(options.memory_cap), made, found);
  return {std::move(made), std::move(stage_of)};
}

}  // namespace

MeasuredCut measured_cut(tensors::Communicator& ranks, const Graph& graph, const Value& example,
                         const CutOptions& options) {
  return found_cut(ranks, graph, example, options).made;
}

MeasuredCut measured_cut(tensors::Communicator& ranks, torch::nn::Sequential model, const Value& example,
                         const CutOptions& options) {
  Graph graph;
  static_cast<void>(cut(model, options.stages == 0 ? ranks.world() : options.stages));  // says what is wrong with it
  const std::vector<std::string> names = model->named_children().keys();
  std::vector<Part> layers = cut(model, static_cast<int>(model->size()));
  std::string input = "input";
  while (std::ranges::find(names, input) != names.end()) input += "'";
  Graph::Source before = graph.input(input);
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].module = layers[i].module->children().front();  // its parameters are "0.weight", not "0.0.weight"
    layers[i].name = Part::kind_of(*layers[i].module);
    before = graph.add(names[i], std::move(layers[i]), {before});
  }
  auto [made, stage_of] = found_cut(ranks, graph, example, options);
  // The parts of a chain are Sequentials themselves.
  std::vector<int> ends;
  for (size_t stage = 0; stage < made.parts.size(); ++stage)
    ends.push_back(static_cast<int>(std::ranges::upper_bound(stage_of, stage) - stage_of.begin()));
  made.parts = cut_at(model, ends);
  return made;
}

schedule::Costs measured_costs(tensors::Communicator& ranks, const std::vector<Part>& stages, const Value& example,
                               std::vector<schedule::Edge> edges) {
  require_messages(ranks);
  if (edges.empty()) edges = schedule::chain_of(static_cast<int>(stages.size()));
  require_edges(edges, stages.size());
  const double link = link_bytes_per_ms(ranks, device_of(stages));
  const json found = of_rank_0(ranks, [&]() -> json {
    Tried each = tried(stages, example, edges);
    measure(each.layers);
    json times = json::array(), links = json::array();
    for (const LayerCost& layer : each.layers) times.push_back({layer.forward_ms(), layer.backward_ms()});
    for (uint64_t bytes : each.edge_bytes) links.push_back(link > 0 ? static_cast<double>(bytes) / link : 0);
    return {{"stages", times}, {"links", links}};
  });
  schedule::Costs costs;
  for (const json& one : found["stages"]) costs.stages.push_back(stage_cost(one[0], one[1]));
  costs.links = found["links"].get<std::vector<double>>();
  return costs;
}

}  // namespace ddip::pipeline
