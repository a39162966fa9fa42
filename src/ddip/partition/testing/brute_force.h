// For tests: graphs by seed, every cut of a small graph, and its cost written once more straight from the definition
// (PIPELINE.md), with sets instead of the sorted edges and prefix sums of the real thing.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>

#include "ddip/partition/cost.h"

namespace ddip::partition::testing {

struct Reference {
  double slowest_ms = 0;
  uint64_t link_bytes = 0;
  uint64_t most_memory = 0;
};

inline Reference reference_cost(const Graph& graph, const Cut& cut, const Costs& costs) {
  const size_t stages = cut.device_of.size();
  const size_t devices = std::set<size_t>(cut.device_of.begin(), cut.device_of.end()).size();
  Reference reference;
  std::map<size_t, uint64_t> link, memory;
  std::set<std::pair<std::string, size_t>> sent;  // value, device
  for (const Edge& edge : graph.edges()) {
    const size_t from = cut.device_of[cut.stage_of[edge.from]], to = cut.device_of[cut.stage_of[edge.to]];
    if (from == to || !sent.emplace(edge.value, to).second) continue;
    link[from] += edge.bytes, link[to] += edge.bytes;
    reference.link_bytes += edge.bytes;
  }
  for (size_t device = 0; device < devices; ++device) {
    double compute = 0;
    for (size_t stage = 0; stage < stages; ++stage) {
      if (cut.device_of[stage] != device) continue;
      const bool again = costs.recompute && stage != stages - 1;
      uint64_t kept = 0, parameters = 0, inputs = 0;
      std::set<std::string> received;
      for (size_t node = 0; node < graph.nodes().size(); ++node) {
        if (cut.stage_of[node] != stage) continue;
        const Node& layer = graph.nodes()[node];
        compute += layer.forward_ms + layer.backward_ms + (again ? layer.forward_ms : 0);
        kept += layer.activation_bytes, parameters += layer.parameter_bytes;
      }
      for (const Edge& edge : graph.edges())
        if (cut.stage_of[edge.to] == stage && cut.stage_of[edge.from] != stage && received.insert(edge.value).second)
          inputs += edge.bytes;
      const uint64_t flying = stages - stage;
      memory[device] += (again ? inputs * flying + kept : kept * flying) +
                        static_cast<uint64_t>(costs.parameter_copies * static_cast<double>(parameters));
    }
    const double comm = costs.link_bytes_per_ms > 0 ? static_cast<double>(link[device]) / costs.link_bytes_per_ms : 0;
    reference.slowest_ms = std::max(reference.slowest_ms, compute + std::max(0.0, comm - compute));
    reference.most_memory = std::max(reference.most_memory, memory[device]);
  }
  return reference;
}

// Calls `use` with every cut into these stages that leads nowhere back and leaves none empty.
inline void every_cut(const Graph& graph, const std::vector<size_t>& devices,
                      const std::function<void(const Cut&)>& use) {
  Cut cut{std::vector<size_t>(graph.nodes().size()), devices};
  const std::function<void(size_t)> place = [&](size_t index) {
    if (index == graph.order().size()) {
      if (std::set<size_t>(cut.stage_of.begin(), cut.stage_of.end()).size() == devices.size()) use(cut);
      return;
    }
    const size_t node = graph.order()[index];
    size_t first = 0;
    for (const Edge& edge : graph.edges())
      if (edge.to == node) first = std::max(first, cut.stage_of[edge.from]);
    for (size_t stage = first; stage < devices.size(); ++stage) {
      cut.stage_of[node] = stage;
      place(index + 1);
    }
  };
  place(0);
}

// Of the cuts that respect the cap; infinity if there is none.
inline Reference best_by_force(const Graph& graph, const std::vector<size_t>& devices, const Costs& costs) {
  Reference best{std::numeric_limits<double>::infinity(), 0, 0};
  every_cut(graph, devices, [&](const Cut& cut) {
    const Reference cost = reference_cost(graph, cut, costs);
    if (costs.memory_cap > 0 && cost.most_memory > costs.memory_cap) return;
    if (cost.slowest_ms < best.slowest_ms - 1e-9 ||
        (cost.slowest_ms < best.slowest_ms + 1e-9 && cost.link_bytes < best.link_bytes))
      best = cost;
  });
  return best;
}

inline std::vector<size_t> one_each(size_t stages) {
  std::vector<size_t> devices;
  for (size_t stage = 0; stage < stages; ++stage) devices.push_back(stage);
  return devices;
}

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t limit) { return random_() % limit; }
  bool chance(uint64_t percent) { return below(100) < percent; }

  Node node(size_t number) {
    return {"layer" + std::to_string(number), static_cast<double>(1 + below(20)), static_cast<double>(1 + below(40)),
            below(500), below(300)};
  }
  Edge edge(size_t from, size_t to) { return {from, to, "", "", bytes_.try_emplace(from, below(200)).first->second}; }

 private:
  std::mt19937_64 random_;
  std::map<size_t, uint64_t> bytes_;  // one value per layer: the same for all that need it
};

inline Graph some_chain(uint64_t seed, size_t layers) {
  Random random(seed);
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  for (size_t index = 0; index < layers; ++index) {
    nodes.push_back(random.node(index));
    if (index > 0) edges.push_back(random.edge(index - 1, index));
  }
  return {nodes, edges};
}

// Every layer but the first needs one to three earlier ones, mostly near ones; some are long skips.
inline Graph some_graph(uint64_t seed, size_t layers) {
  Random random(seed);
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  for (size_t index = 0; index < layers; ++index) {
    nodes.push_back(random.node(index));
    std::set<size_t> needs;
    for (size_t count = index == 0 ? 0 : 1 + random.below(3); count > 0; --count)
      needs.insert(random.chance(60) ? index - 1 - random.below(std::min<size_t>(index, 2)) : random.below(index));
    for (size_t other : needs) edges.push_back(random.edge(other, index));
  }
  return {nodes, edges};
}

inline Costs some_costs(uint64_t seed) {
  Random random(seed ^ 0x5eed);
  Costs costs;
  costs.link_bytes_per_ms = random.chance(25) ? 0 : static_cast<double>(1 + random.below(20));
  costs.recompute = random.chance(40);
  costs.parameter_copies = static_cast<double>(1 + random.below(4));
  costs.memory_cap = random.chance(50) ? 0 : 2000 + random.below(8000);
  return costs;
}

}  // namespace ddip::partition::testing
