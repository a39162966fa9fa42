#include "ddip/partition/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "ddip/base/error.h"
#include "ddip/partition/chain.h"

namespace ddip::partition {
namespace {

// std::mt19937_64 gives the same numbers everywhere; the library's distributions do not.
using Random = std::mt19937_64;
size_t below(Random& random, size_t limit) { return static_cast<size_t>(random() % limit); }

double unevenness(const Cost& cost) {
  double sum = 0;
  for (const DeviceCost& device : cost.devices) sum += device.ms() * device.ms();
  return sum;
}

// The same up to rounding: sums in another order must not count as progress, or a search goes round for ever.
bool less(double a, double b) { return a < b - 1e-9 * (1 + std::abs(b)); }

struct Neighbours {
  std::vector<std::vector<size_t>> before, after;

  explicit Neighbours(const Graph& graph) : before(graph.nodes().size()), after(graph.nodes().size()) {
    for (const Edge& edge : graph.edges()) {
      before[edge.to].push_back(edge.from);
      after[edge.from].push_back(edge.to);
    }
  }

  // The stages in which this layer may lie, given where its neighbours do.
  std::pair<size_t, size_t> range(size_t node, const Cut& cut) const {
    size_t first = 0, last = cut.stages() - 1;
    for (size_t other : before[node]) first = std::max(first, cut.stage_of[other]);
    for (size_t other : after[node]) last = std::min(last, cut.stage_of[other]);
    return {first, last};
  }
};

class Climb {
 public:
  Climb(const Graph& graph, Cut cut, const Costs& costs, uint64_t seed)
      : graph_(graph), costs_(costs), neighbours_(graph), cut_(std::move(cut)), random_(seed) {
    sizes_.resize(cut_.stages());
    for (size_t stage : cut_.stage_of) ++sizes_[stage];
    cost_ = cost_of(graph_, cut_, costs_);
  }

  Cut run() {
    std::vector<size_t> nodes(cut_.stage_of.size());
    for (size_t index = 0; index < nodes.size(); ++index) nodes[index] = index;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t left = nodes.size(); left > 1; --left) std::swap(nodes[left - 1], nodes[below(random_, left)]);
      for (size_t node : nodes) moved |= move(node);
      // Exchanges cost the square of the layers: only where nothing else helps, and in small models.
      if (!moved && nodes.size() <= kFewLayers)
        for (size_t node : nodes) moved |= exchange(node);
    }
    return cut_;
  }

 private:
  static constexpr size_t kFewLayers = 64;

  void put(size_t node, size_t stage) {
    --sizes_[cut_.stage_of[node]];
    ++sizes_[stage];
    cut_.stage_of[node] = stage;
  }

  // Whether the cut as it lies now is legal and better than the one that cost `cost_`; then it is kept.
  bool keep() {
    if (std::find(sizes_.begin(), sizes_.end(), size_t{0}) != sizes_.end()) return false;
    Cost cost = cost_of(graph_, cut_, costs_);
    if (!better(cost, cost_)) return false;
    cost_ = std::move(cost);
    return true;
  }

  bool move(size_t node) {
    const auto [first, last] = neighbours_.range(node, cut_);
    for (size_t stage = first; stage <= last; ++stage) {
      const size_t home = cut_.stage_of[node];
      if (stage == home) continue;
      put(node, stage);
      if (keep()) return true;
      put(node, home);
    }
    return false;
  }

  // Moves `node` and then one other layer, wherever that is legal.
  bool exchange(size_t node) {
    const size_t home = cut_.stage_of[node];
    const auto [first, last] = neighbours_.range(node, cut_);
    for (size_t stage = first; stage <= last; ++stage) {
      if (stage == home) continue;
      put(node, stage);
      for (size_t other = 0; other < cut_.stage_of.size(); ++other)
        if (other != node && move(other)) return true;
      put(node, home);
    }
    return false;
  }

  const Graph& graph_;
  const Costs& costs_;
  const Neighbours neighbours_;
  Cut cut_;
  Cost cost_;
  std::vector<size_t> sizes_;  // layers of each stage
  Random random_;
};

// Behind each layer one that became ready by it, if there is one: branches stay together, so that a cut crosses few.
std::vector<size_t> some_order(const Graph& graph, Random& random) {
  const Neighbours neighbours(graph);
  std::vector<size_t> missing, ready, order;
  for (size_t node = 0; node < graph.nodes().size(); ++node) {
    missing.push_back(neighbours.before[node].size());
    if (missing.back() == 0) ready.push_back(node);
  }
  const bool deep = below(random, 2) == 0;
  while (!ready.empty()) {
    const size_t at = deep && below(random, 4) > 0 ? ready.size() - 1 : below(random, ready.size());
    const size_t node = ready[at];
    ready.erase(ready.begin() + static_cast<ptrdiff_t>(at));
    order.push_back(node);
    for (size_t next : neighbours.after[node])
      if (--missing[next] == 0) ready.push_back(next);
  }
  return order;
}

void refuse_without_room(const Cost& cost, size_t stages, const Costs& costs) {
  if (cost.excess_bytes > 0)
    throw ConfigError(fmt::format("no cut into {} stages was found that fits in {} per device", stages,
                                  bytes_in_words(costs.memory_cap)));
}

}  // namespace

bool better(const Cost& a, const Cost& b) {
  if (a.excess_bytes != b.excess_bytes) return a.excess_bytes < b.excess_bytes;
  if (less(a.slowest_ms, b.slowest_ms)) return true;
  if (less(b.slowest_ms, a.slowest_ms)) return false;
  const double uneven_a = unevenness(a), uneven_b = unevenness(b);
  if (less(uneven_a, uneven_b)) return true;
  if (less(uneven_b, uneven_a)) return false;
  return a.link_bytes < b.link_bytes;
}

Cut improved(const Graph& graph, Cut cut, const Costs& costs, uint64_t seed) {
  return Climb(graph, std::move(cut), costs, seed).run();
}

Cut search_cut(const Graph& graph, size_t stages, const Costs& costs, const SearchOptions& options) {
  Random random(options.seed);
  Cut best;
  Cost best_cost;
  for (int start = 0; start < std::max(options.starts, 1); ++start) {
    const std::vector<size_t> order = start == 0 ? graph.order() : some_order(graph, random);
    Cut cut = improved(graph, cut_order(graph, order, stages, costs), costs, random());
    Cost cost = cost_of(graph, cut, costs);
    if (start > 0 && !better(cost, best_cost)) continue;
    best = std::move(cut);
    best_cost = std::move(cost);
  }
  refuse_without_room(best_cost, stages, costs);
  return best;
}

Cut cut_model(const Graph& graph, size_t stages, const Costs& costs, const SearchOptions& options) {
  if (stages == 0) throw ConfigError("0 stages; expected at least one");
  if (stages > graph.nodes().size())
    throw ConfigError(
        fmt::format("{} stages for {} layers; expected no more stages than layers", stages, graph.nodes().size()));
  return graph.is_chain() ? cut_chain(graph, stages, costs) : search_cut(graph, stages, costs, options);
}

}  // namespace ddip::partition
