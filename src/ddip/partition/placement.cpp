#include "ddip/partition/placement.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "ddip/base/error.h"
#include "ddip/partition/chain.h"

namespace ddip::partition {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// The table of borders has the square of the layers, that of choices the square of the borders.
constexpr size_t kMostLayers = 512;
constexpr size_t kMostBorders = 4000;

// What is deeper than some device: layers [begin, end) of the order.
struct Inside {
  size_t begin = 0;
  size_t end = 0;
  uint64_t bytes = 0;  // in and out
};

// What may go into a piece and come out of it besides that: nothing, or more edges of the one value that does. A
// residual block is a small mirror too, and its two edges carry one value: then a skip crosses a link, but costs
// nothing there.
enum class Crossing { one_edge, one_value };

// Every piece of the order into which at most one edge or value leads and out of which at most one, the whole first.
std::vector<Inside> clean_pieces(const Graph& graph, Crossing crossing) {
  const size_t layers = graph.order().size();
  std::vector<size_t> place(layers);
  for (size_t index = 0; index < layers; ++index) place[graph.order()[index]] = index;
  std::vector<Inside> found = {{0, layers, 0}};
  for (size_t begin = 0; begin < layers; ++begin) {
    for (size_t end = begin + 1; end <= layers; ++end) {
      if (begin == 0 && end == layers) continue;
      size_t in = 0, out = 0;
      uint64_t bytes = 0;
      const std::string* before = nullptr;
      for (const Edge& edge : graph.edges()) {
        const bool from = place[edge.from] >= begin && place[edge.from] < end;
        const bool to = place[edge.to] >= begin && place[edge.to] < end;
        if (from == to) continue;
        const bool again = before != nullptr && *before == edge.value;
        before = &edge.value;
        if (again && crossing == Crossing::one_value) continue;
        ++(to ? in : out);
        bytes += edge.bytes;
        if (in > 1 || out > 1) break;
      }
      if (in <= 1 && out <= 1) found.push_back({begin, end, bytes});
    }
  }
  return found;
}

// Sums over the order, for the two pieces of one device.
class Sums {
 public:
  Sums(const Graph& graph, size_t devices, const Costs& costs) : costs_(costs), devices_(devices) {
    forward_ = {0}, backward_ = {0}, kept_ = {0}, parameters_ = {0};
    for (size_t index : graph.order()) {
      const Node& node = graph.nodes()[index];
      forward_.push_back(forward_.back() + node.forward_ms);
      backward_.push_back(backward_.back() + node.backward_ms);
      kept_.push_back(kept_.back() + node.activation_bytes);
      parameters_.push_back(parameters_.back() + node.parameter_bytes);
    }
  }

  // Device `level` has what lies between `outer` and `inner`, the deepest all of `outer`. Infinite if that does not
  // fit, as if every stage were there and none recomputed: an upper bound of its memory.
  double ms(size_t level, const Inside& outer, const Inside& inner) const {
    const bool last = level + 1 == devices_;
    const auto sum = [&](const auto& sums) {
      return last ? sums[outer.end] - sums[outer.begin]
                  : sums[inner.begin] - sums[outer.begin] + sums[outer.end] - sums[inner.end];
    };
    if (costs_.memory_cap > 0) {
      const size_t stages = 2 * devices_ - 1;
      uint64_t kept = (last ? sum(kept_) : kept_[inner.begin] - kept_[outer.begin]) * (stages - level);
      if (!last) kept += (kept_[outer.end] - kept_[inner.end]) * (level + 1);
      const uint64_t weights = costs_.held(sum(parameters_));
      if (kept + weights > costs_.memory_cap) return kNever;
    }
    double compute = sum(forward_) + sum(backward_);
    if (costs_.recompute)
      compute += level == 0 && !last ? forward_[inner.begin] - forward_[outer.begin] : sum(forward_);
    const uint64_t bytes = outer.bytes + (last ? 0 : inner.bytes);
    const double link = costs_.link_bytes_per_ms > 0 ? static_cast<double>(bytes) / costs_.link_bytes_per_ms : 0;
    return std::max(compute, link);
  }

 private:
  const Costs& costs_;
  size_t devices_;
  std::vector<double> forward_, backward_;
  std::vector<uint64_t> kept_, parameters_;
};

// `borders`: by device, what lies on it and deeper.
Cut nested_cut(const Graph& graph, const std::vector<Inside>& borders) {
  const size_t layers = graph.order().size();
  const size_t devices = borders.size();
  Cut cut{std::vector<size_t>(layers), {}};
  const auto add = [&](size_t begin, size_t end, size_t device) {
    if (begin == end) return;
    for (size_t index = begin; index < end; ++index) cut.stage_of[graph.order()[index]] = cut.device_of.size();
    cut.device_of.push_back(device);
  };
  for (size_t device = 0; device + 1 < devices; ++device) add(borders[device].begin, borders[device + 1].begin, device);
  add(borders.back().begin, borders.back().end, devices - 1);
  for (size_t device = devices - 1; device-- > 0;) add(borders[device + 1].end, borders[device].end, device);
  // A device may have a piece of the end only; numbers follow the way of a micro-batch all the same.
  std::vector<size_t> met;
  for (size_t& device : cut.device_of) {
    const auto found = std::find(met.begin(), met.end(), device);
    const auto number = static_cast<size_t>(found - met.begin());
    if (found == met.end()) met.push_back(device);
    device = number;
  }
  return cut;
}

std::optional<Cut> best_nested(const Graph& graph, size_t devices, const Costs& costs, Crossing crossing) {
  const std::vector<Inside> pieces = clean_pieces(graph, crossing);
  if (pieces.size() > kMostBorders) return std::nullopt;
  const Sums sums(graph, devices, costs);
  // best[piece]: of the devices from `level` on, over that piece.
  std::vector<double> best(pieces.size());
  for (size_t piece = 0; piece < pieces.size(); ++piece)
    best[piece] = sums.ms(devices - 1, pieces[piece], pieces[piece]);
  std::vector<std::vector<size_t>> choice(devices, std::vector<size_t>(pieces.size()));
  for (size_t level = devices - 1; level-- > 0;) {
    std::vector<double> above(pieces.size(), kNever);
    for (size_t outer = 0; outer < pieces.size(); ++outer) {
      for (size_t inner = 0; inner < pieces.size(); ++inner) {
        const Inside &out = pieces[outer], &in = pieces[inner];
        if (inner == outer || in.begin < out.begin || in.end > out.end || best[inner] == kNever) continue;
        const double ms = std::max(best[inner], sums.ms(level, out, in));
        if (ms < above[outer]) above[outer] = ms, choice[level][outer] = inner;
      }
    }
    best = std::move(above);
  }
  if (best[0] == kNever) return std::nullopt;
  std::vector<Inside> borders = {pieces[0]};
  for (size_t level = 0, piece = 0; level + 1 < devices; ++level) {
    piece = choice[level][piece];
    borders.push_back(pieces[piece]);
  }
  Cut cut = nested_cut(graph, borders);
  if (cost_of(graph, cut, costs).excess_bytes > 0) return std::nullopt;
  return cut;
}

// What lies in buffers: a value that jumps over stages waits for as many micro-batches at its end.
uint64_t waiting_bytes(const Graph& graph, const Cut& cut) {
  uint64_t sum = 0;
  for (const Edge& edge : graph.edges()) {
    const size_t from = cut.stage_of[edge.from], to = cut.stage_of[edge.to];
    if (cut.device_of[from] != cut.device_of[to]) sum += edge.bytes * (to - from);
  }
  return sum;
}

std::vector<size_t> one_stage_each(size_t devices) {
  std::vector<size_t> stages(devices);
  std::iota(stages.begin(), stages.end(), size_t{0});
  return stages;
}

void consider(std::vector<Cut>& found, std::optional<Cut> cut) {
  if (cut) found.push_back(std::move(*cut));
}

// Stages of the given devices, from the best pieces of the order on.
std::optional<Cut> searched(const Graph& graph, const std::vector<size_t>& devices, const Costs& costs, uint64_t seed) {
  if (devices.size() > graph.nodes().size()) return std::nullopt;
  Cut cut = cut_order(graph, graph.order(), devices.size(), costs);
  cut.device_of = devices;
  return improved(graph, std::move(cut), costs, seed);
}

}  // namespace

std::optional<Cut> cut_mirrored(const Graph& graph, size_t devices, const Costs& costs) {
  const size_t layers = graph.nodes().size();
  if (devices < 2 || devices > layers || layers > kMostLayers || graph.is_chain()) return std::nullopt;
  if (auto cut = best_nested(graph, devices, costs, Crossing::one_edge)) return cut;
  return best_nested(graph, devices, costs, Crossing::one_value);
}

Cut cut_mixed(const Graph& graph, size_t devices, const Costs& costs, const SearchOptions& options, double slack) {
  std::vector<Cut> found;
  std::string why_not;
  try {
    found.push_back(cut_model(graph, devices, costs, options));
  } catch (const ConfigError& error) {
    if (devices == 0 || devices > graph.nodes().size()) throw;
    why_not = error.what();
  }
  if (devices > 1) {
    std::vector<size_t> there = one_stage_each(devices);
    std::vector<size_t> twice = there;
    twice.insert(twice.end(), there.begin(), there.end());
    there.insert(there.end(), there.rbegin() + 1, there.rend());
    consider(found, searched(graph, there, costs, options.seed));
    consider(found, searched(graph, twice, costs, options.seed));
  }
  const std::optional<Cut> mirrored = cut_mirrored(graph, devices, costs);
  consider(found, mirrored);
  if (found.empty()) throw ConfigError(why_not);
  const Cut* best = &found.front();
  for (const Cut& cut : found)
    if (better(cost_of(graph, cut, costs), cost_of(graph, *best, costs))) best = &cut;
  const Cost cost = cost_of(graph, *best, costs);
  if (cost.excess_bytes > 0) throw ConfigError(why_not);
  const bool worth_it = mirrored && cost_of(graph, *mirrored, costs).slowest_ms <= slack * cost.slowest_ms &&
                        waiting_bytes(graph, *mirrored) < waiting_bytes(graph, *best);
  return worth_it ? *mirrored : *best;
}

}  // namespace ddip::partition
