#include "ddip/partition/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"
#include "ddip/base/strict_json.h"

namespace ddip::partition {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVersion = 1;

std::string one_per_line(const std::vector<ordered_json>& items) {
  std::string text;
  for (const ordered_json& item : items) text += (text.empty() ? "\n    " : ",\n    ") + item.dump();
  return "[" + text + "\n  ]";
}

// One object of the file, whose keys are all known and all taken.
class Fields {
 public:
  Fields(const json& object, std::string what, const std::vector<std::string>& keys)
      : object_(object), what_(std::move(what)) {
    if (!object.is_object()) throw ConfigError(what_ + ": expected an object, {…}");
    for (const auto& [key, value] : object.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        throw ConfigError(fmt::format("{}: the key {:?} is unknown{}", what_, key, did_you_mean(key, keys)));
  }

  std::string text(const std::string& key) const {
    const json& value = at(key);
    if (!value.is_string()) refuse(key, "a text");
    return value.get<std::string>();
  }
  uint64_t count(const std::string& key) const {
    const json& value = at(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMostBytes)
      refuse(key, "a whole number from 0 to 1125899906842624");
    return value.get<uint64_t>();
  }
  double number(const std::string& key) const {
    const json& value = at(key);
    if (!value.is_number() || value.get<double>() < 0) refuse(key, "a number of 0 or more");
    return value.get<double>();
  }
  bool truth(const std::string& key) const {
    const json& value = at(key);
    if (!value.is_boolean()) refuse(key, "true or false");
    return value.get<bool>();
  }
  const json& list(const std::string& key) const {
    const json& value = at(key);
    if (!value.is_array()) refuse(key, "a list, […]");
    return value;
  }

 private:
  const json& at(const std::string& key) const {
    if (!object_.contains(key)) throw ConfigError(fmt::format("{}: the key {:?} is missing", what_, key));
    return object_.at(key);
  }
  [[noreturn]] void refuse(const std::string& key, const char* expected) const {
    throw ConfigError(
        fmt::format("{}: {:?} is {}; expected {}", what_, key, object_.at(key).dump().substr(0, 60), expected));
  }

  const json& object_;
  const std::string what_;
};

Graph read_graph(const Fields& file) {
  std::vector<Node> nodes;
  for (const json& entry : file.list("layers")) {
    const Fields layer(entry, fmt::format("layers[{}]", nodes.size()),
                       {"name", "forward_ms", "backward_ms", "parameter_bytes", "activation_bytes"});
    nodes.push_back({layer.text("name"), layer.number("forward_ms"), layer.number("backward_ms"),
                     layer.count("parameter_bytes"), layer.count("activation_bytes")});
  }
  const Graph names(nodes, {});
  std::vector<Edge> edges;
  for (const json& entry : file.list("edges")) {
    const std::string what = fmt::format("edges[{}]", edges.size());
    const Fields edge(entry, what, {"from", "to", "value", "shape", "bytes"});
    try {
      edges.push_back({names.index_of(edge.text("from")), names.index_of(edge.text("to")), edge.text("value"),
                       edge.text("shape"), edge.count("bytes")});
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      throw ConfigError(text.starts_with(what) ? text : what + ": " + text);
    }
  }
  return {std::move(nodes), std::move(edges)};
}

Cut read_cut(const Fields& file, const Graph& graph) {
  const json& stages = file.list("stages");
  const size_t devices = file.count("devices");
  if (stages.size() > graph.nodes().size())
    throw ConfigError(fmt::format("{} stages for {} layers; expected no more stages than layers", stages.size(),
                                  graph.nodes().size()));
  std::vector<std::optional<size_t>> stage_of(graph.nodes().size());
  Cut cut;
  for (size_t number = 0; number < stages.size(); ++number) {
    const Fields stage(stages[number], fmt::format("stage {}", number), {"device", "layers"});
    cut.device_of.push_back(stage.count("device"));
    if (cut.device_of.back() >= devices)
      throw ConfigError(fmt::format("stage {}: device {} of {}; expected 0 to {}", number, cut.device_of.back(),
                                    devices, devices == 0 ? 0 : devices - 1));
    const json& layers = stage.list("layers");
    if (layers.empty()) throw ConfigError(fmt::format("stage {} is empty; expected at least one layer", number));
    for (const json& name : layers) {
      if (!name.is_string()) throw ConfigError(fmt::format("stage {}: expected names of layers", number));
      size_t index = 0;
      try {
        index = graph.index_of(name.get<std::string>());
      } catch (const ConfigError& error) {
        throw ConfigError(fmt::format("stage {}: {}", number, error.what()));
      }
      if (stage_of[index])
        throw ConfigError(*stage_of[index] == number
                              ? fmt::format("layer {} is twice in stage {}", name.get<std::string>(), number)
                              : fmt::format("layer {} is in stage {} and in stage {}; expected one of them",
                                            name.get<std::string>(), *stage_of[index], number));
      stage_of[index] = number;
    }
  }
  for (size_t node = 0; node < stage_of.size(); ++node) {
    if (!stage_of[node]) throw ConfigError(fmt::format("layer {} is in no stage", graph.nodes()[node].name));
    cut.stage_of.push_back(*stage_of[node]);
  }
  for (size_t device = 0; device < devices; ++device)
    if (std::find(cut.device_of.begin(), cut.device_of.end(), device) == cut.device_of.end())
      throw ConfigError(fmt::format("device {} of {} has no stage", device, devices));
  return cut;
}

Plan read_unnamed(std::string_view text) {
  json parsed;
  try {
    parsed = parse_strict_json(text, 8);
  } catch (const NotJson& error) {
    throw ConfigError(error.what());
  }
  const Fields file(parsed, "the file",
                    {"ddip_partition", "model", "devices", "stages", "memory_cap_bytes", "recompute",
                     "parameter_copies", "link_bytes_per_ms", "edges", "layers"});
  if (const uint64_t version = file.count("ddip_partition"); version != kVersion)
    throw ConfigError(fmt::format("its format is number {}; this ddip reads {}", version, kVersion));
  Plan plan;
  plan.model = file.text("model");
  plan.costs = {file.number("link_bytes_per_ms"), file.truth("recompute"), file.count("memory_cap_bytes"),
                file.number("parameter_copies")};
  check_costs(plan.costs);
  plan.graph = read_graph(file);
  plan.cut = read_cut(file, plan.graph);
  check_cut(plan.graph, plan.cut);
  check_memory(plan.graph, plan.cut, plan.costs);
  return plan;
}

}  // namespace

std::string plan_text(const Plan& plan) {
  const auto& nodes = plan.graph.nodes();
  std::vector<ordered_json> stages, edges, layers;
  for (size_t stage = 0; stage < plan.cut.stages(); ++stage) {
    ordered_json names = ordered_json::array();
    for (size_t node : plan.graph.order())
      if (plan.cut.stage_of[node] == stage) names.push_back(nodes[node].name);
    stages.push_back({{"device", plan.cut.device_of[stage]}, {"layers", std::move(names)}});
  }
  for (const Edge& edge : plan.graph.edges())
    edges.push_back({{"from", nodes[edge.from].name},
                     {"to", nodes[edge.to].name},
                     {"value", edge.value},
                     {"shape", edge.shape},
                     {"bytes", edge.bytes}});
  for (const Node& node : nodes)
    layers.push_back({{"name", node.name},
                      {"forward_ms", node.forward_ms},
                      {"backward_ms", node.backward_ms},
                      {"parameter_bytes", node.parameter_bytes},
                      {"activation_bytes", node.activation_bytes}});
  std::string text = "{\n";
  const auto add = [&](const char* key, const std::string& value) {
    text += fmt::format("  \"{}\": {}{}\n", key, value, std::string_view(key) == "layers" ? "" : ",");
  };
  add("ddip_partition", std::to_string(kVersion));
  add("model", json(plan.model).dump());
  add("devices", std::to_string(plan.cut.devices()));
  add("stages", one_per_line(stages));
  add("memory_cap_bytes", std::to_string(plan.costs.memory_cap));
  add("recompute", plan.costs.recompute ? "true" : "false");
  add("parameter_copies", json(plan.costs.parameter_copies).dump());
  add("link_bytes_per_ms", json(plan.costs.link_bytes_per_ms).dump());
  add("edges", edges.empty() ? "[]" : one_per_line(edges));
  add("layers", one_per_line(layers));
  return text + "}\n";
}

Plan read_plan(std::string_view text, const std::string& where) {
  try {
    return read_unnamed(text);
  } catch (const ConfigError& error) {
    throw ConfigError(where + ": " + error.what());
  }
}

void check_plan_is_for(const Plan& plan, const Graph& model) {
  const auto& names = plan.graph.nodes();
  for (const Node& node : names) model.index_of(node.name);
  for (const Node& node : model.nodes())
    if (std::none_of(names.begin(), names.end(), [&](const Node& other) { return other.name == node.name; }))
      throw ConfigError(fmt::format("layer {} of the model is in no stage of the plan", node.name));
  struct Ends {
    std::string from, to, value;
    auto operator<=>(const Ends&) const = default;
  };
  const auto ends = [](const Graph& graph, const Edge& edge) {
    return Ends{graph.nodes()[edge.from].name, graph.nodes()[edge.to].name, edge.value};
  };
  std::map<Ends, std::string> planned;
  for (const Edge& edge : plan.graph.edges()) planned[ends(plan.graph, edge)] = edge.shape;
  for (const Edge& edge : model.edges()) {
    const Ends joins = ends(model, edge);
    const auto found = planned.find(joins);
    if (found == planned.end())
      throw ConfigError(
          fmt::format("in the model {} needs {} of {}; the plan has no such edge", joins.to, joins.value, joins.from));
    if (found->second != edge.shape)
      throw ConfigError(fmt::format("between {} and {} the plan has {} and the model {}", joins.from, joins.to,
                                    found->second, edge.shape));
    planned.erase(found);
  }
  if (planned.empty()) return;
  const Ends& extra = planned.begin()->first;
  throw ConfigError(
      fmt::format("in the plan {} needs {} of {}; the model has no such edge", extra.to, extra.value, extra.from));
}

void check_world(size_t world, size_t replicas, size_t devices) {
  if (world == replicas * devices) return;
  throw ConfigError(
      fmt::format("world size {} ≠ {} replicas × {} devices = {}", world, replicas, devices, replicas * devices));
}

}  // namespace ddip::partition
