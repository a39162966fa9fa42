#include "ddip/partition/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "ddip/base/error.h"

namespace ddip::partition {
namespace {

void add_links(const Graph& graph, const Cut& cut, Cost& cost) {
  const auto& edges = graph.edges();
  std::vector<size_t> reached;  // devices that this value was sent to already
  for (size_t index = 0; index < edges.size(); ++index) {
    const Edge& edge = edges[index];
    if (index == 0 || edges[index - 1].value != edge.value) reached.clear();
    const size_t from = cut.device_of[cut.stage_of[edge.from]];
    const size_t to = cut.device_of[cut.stage_of[edge.to]];
    if (from == to || std::find(reached.begin(), reached.end(), to) != reached.end()) continue;
    reached.push_back(to);
    cost.devices[from].link_bytes += edge.bytes;
    cost.devices[to].link_bytes += edge.bytes;
    cost.link_bytes += edge.bytes;
  }
}

// By stage: bytes that come from earlier stages, each value once.
std::vector<uint64_t> inputs_of(const Graph& graph, const Cut& cut) {
  std::vector<uint64_t> inputs(cut.stages());
  const auto& edges = graph.edges();
  std::vector<size_t> reached;
  for (size_t index = 0; index < edges.size(); ++index) {
    const Edge& edge = edges[index];
    if (index == 0 || edges[index - 1].value != edge.value) reached.clear();
    const size_t to = cut.stage_of[edge.to];
    if (cut.stage_of[edge.from] == to || std::find(reached.begin(), reached.end(), to) != reached.end()) continue;
    reached.push_back(to);
    inputs[to] += edge.bytes;
  }
  return inputs;
}

void add_memory(const Graph& graph, const Cut& cut, const Costs& costs, Cost& cost) {
  std::vector<uint64_t> activations(cut.stages());
  std::vector<uint64_t> parameters(cut.stages());
  for (size_t node = 0; node < graph.nodes().size(); ++node) {
    activations[cut.stage_of[node]] += graph.nodes()[node].activation_bytes;
    parameters[cut.stage_of[node]] += graph.nodes()[node].parameter_bytes;
  }
  const std::vector<uint64_t> inputs = costs.recompute ? inputs_of(graph, cut) : std::vector<uint64_t>();
  for (size_t stage = 0; stage < cut.stages(); ++stage) {
    const uint64_t in_flight = cut.stages() - stage;
    const bool again = costs.recompute && stage + 1 < cut.stages();
    const uint64_t kept = again ? inputs[stage] * in_flight + activations[stage] : activations[stage] * in_flight;
    cost.devices[cut.device_of[stage]].memory_bytes += kept + costs.held(parameters[stage]);
  }
}

}  // namespace

void check_costs(const Costs& costs) {
  const double link = costs.link_bytes_per_ms, copies = costs.parameter_copies;
  if (link != 0 && !(link >= 1e-3 && link <= 1e15))
    throw ConfigError(fmt::format("a link of {} bytes/ms; expected 0 (links cost nothing), or 0.001 to 1e15", link));
  if (costs.memory_cap > kMostBytes)
    throw ConfigError(fmt::format("a memory of {} bytes; expected at most {}", costs.memory_cap, kMostBytes));
  if (!(copies >= 0 && copies <= 1000))
    throw ConfigError(fmt::format("{} copies of the parameters; expected 0 to 1000", copies));
}

uint64_t Costs::held(uint64_t parameter_bytes) const {
  // A file may say anything: more than fits in the number is more than any memory.
  return static_cast<uint64_t>(std::min(parameter_copies * static_cast<double>(parameter_bytes), 1e18));
}

size_t Cut::devices() const {
  return device_of.empty() ? 0 : *std::max_element(device_of.begin(), device_of.end()) + 1;
}

Cost cost_of(const Graph& graph, const Cut& cut, const Costs& costs) {
  Cost cost;
  cost.devices.resize(cut.devices());
  for (size_t node = 0; node < graph.nodes().size(); ++node) {
    const Node& layer = graph.nodes()[node];
    const size_t stage = cut.stage_of[node];
    const bool again = costs.recompute && stage + 1 < cut.stages();
    cost.devices[cut.device_of[stage]].compute_ms += layer.forward_ms * (again ? 2 : 1) + layer.backward_ms;
  }
  add_links(graph, cut, cost);
  add_memory(graph, cut, costs, cost);
  for (DeviceCost& device : cost.devices) {
    if (costs.link_bytes_per_ms > 0) device.link_ms = static_cast<double>(device.link_bytes) / costs.link_bytes_per_ms;
    cost.slowest_ms = std::max(cost.slowest_ms, device.ms());
    if (costs.memory_cap > 0 && device.memory_bytes > costs.memory_cap)
      cost.excess_bytes += device.memory_bytes - costs.memory_cap;
  }
  return cost;
}

void check_cut(const Graph& graph, const Cut& cut) {
  if (cut.stages() > graph.nodes().size())
    throw ConfigError(fmt::format("{} stages for {} layers; expected no more stages than layers", cut.stages(),
                                  graph.nodes().size()));
  std::vector<size_t> layers(cut.stages());
  for (size_t stage : cut.stage_of) ++layers[stage];
  for (size_t stage = 0; stage < layers.size(); ++stage)
    if (layers[stage] == 0) throw ConfigError(fmt::format("stage {} is empty; expected at least one layer", stage));
  for (const Edge& edge : graph.edges()) {
    const size_t from = cut.stage_of[edge.from], to = cut.stage_of[edge.to];
    if (from > to)
      throw ConfigError(fmt::format("layer {} of stage {} needs {} of stage {}; expected an earlier or the same stage",
                                    graph.nodes()[edge.to].name, to, graph.nodes()[edge.from].name, from));
  }
}

void check_memory(const Graph& graph, const Cut& cut, const Costs& costs) {
  if (costs.memory_cap == 0) return;
  const Cost cost = cost_of(graph, cut, costs);
  for (size_t device = 0; device < cost.devices.size(); ++device) {
    if (cost.devices[device].memory_bytes <= costs.memory_cap) continue;
    std::string stages;
    for (size_t stage = 0; stage < cut.stages(); ++stage)
      if (cut.device_of[stage] == device) stages += fmt::format("{}{}", stages.empty() ? "" : " and ", stage);
    throw ConfigError(fmt::format("stage {} needs {} on device {}, over the memory cap of {}", stages,
                                  bytes_in_words(cost.devices[device].memory_bytes), device,
                                  bytes_in_words(costs.memory_cap)));
  }
}

double whole_ms(const Graph& graph) {
  double sum = 0;
  for (const Node& node : graph.nodes()) sum += node.forward_ms + node.backward_ms;
  return sum;
}

double speed_up(const Graph& graph, const Cost& cost) {
  return cost.slowest_ms > 0 ? whole_ms(graph) / cost.slowest_ms : 1;
}

double bubble(const Cost& cost) {
  if (cost.slowest_ms <= 0) return 0;
  double busy = 0;
  for (const DeviceCost& device : cost.devices) busy += device.compute_ms;
  return 1 - busy / (cost.slowest_ms * static_cast<double>(cost.devices.size()));
}

double bubble_with_flush(const Cost& cost, size_t micro_batches) {
  if (cost.slowest_ms <= 0) return 0;
  const auto count = static_cast<double>(micro_batches);
  double busy = 0;
  for (const DeviceCost& device : cost.devices) busy += device.compute_ms;
  const double all = busy + (count - 1) * cost.slowest_ms;
  return 1 - count * busy / (all * static_cast<double>(cost.devices.size()));
}

std::string bytes_in_words(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.4g} {}", value, kUnits.at(unit));
}

}  // namespace ddip::partition
