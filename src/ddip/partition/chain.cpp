#include "ddip/partition/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "ddip/base/check.h"
#include "ddip/base/error.h"

namespace ddip::partition {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Costs of every piece [begin, end) of an order, so that each question is answered at once.
class Pieces {
 public:
  Pieces(const Graph& graph, const std::vector<size_t>& order, size_t stages, const Costs& costs)
      : costs_(costs), stages_(stages), size_(order.size()), in_((size_ + 1) * (size_ + 1)), out_(in_.size()) {
    forward_ = {0}, backward_ = {0}, kept_ = {0}, parameters_ = {0};
    for (size_t index : order) {
      const Node& node = graph.nodes()[index];
      forward_.push_back(forward_.back() + node.forward_ms);
      backward_.push_back(backward_.back() + node.backward_ms);
      kept_.push_back(kept_.back() + node.activation_bytes);
      parameters_.push_back(parameters_.back() + node.parameter_bytes);
    }
    measure_links(graph, order);
  }

  size_t size() const { return size_; }
  uint64_t sent(size_t begin, size_t end) const { return out_[begin * (size_ + 1) + end]; }

  double ms(size_t stage, size_t begin, size_t end) const {
    const double again = repeats(stage) ? forward_[end] - forward_[begin] : 0;
    const double compute = forward_[end] - forward_[begin] + backward_[end] - backward_[begin] + again;
    if (costs_.link_bytes_per_ms <= 0) return compute;
    return std::max(compute, static_cast<double>(received(begin, end) + sent(begin, end)) / costs_.link_bytes_per_ms);
  }

  bool fits(size_t stage, size_t begin, size_t end) const {
    if (costs_.memory_cap == 0) return true;
    const uint64_t kept = kept_[end] - kept_[begin], in_flight = stages_ - stage;
    const uint64_t weights = costs_.held(parameters_[end] - parameters_[begin]);
    return (repeats(stage) ? received(begin, end) * in_flight + kept : kept * in_flight) + weights <= costs_.memory_cap;
  }

 private:
  bool repeats(size_t stage) const { return costs_.recompute && stage + 1 < stages_; }
  uint64_t received(size_t begin, size_t end) const { return in_[begin * (size_ + 1) + end]; }

  struct Value {
    size_t maker = 0;
    std::vector<size_t> users;  // ascending
    uint64_t bytes = 0;
  };

  void measure_links(const Graph& graph, const std::vector<size_t>& order) {
    std::vector<size_t> place(size_);
    for (size_t index = 0; index < size_; ++index) place[order[index]] = index;
    std::vector<Value> values;
    const auto& edges = graph.edges();
    for (size_t index = 0; index < edges.size(); ++index) {
      const Edge& edge = edges[index];
      if (index == 0 || edges[index - 1].value != edge.value) values.push_back({place[edge.from], {}, edge.bytes});
      values.back().users.push_back(place[edge.to]);
    }
    for (Value& value : values) std::sort(value.users.begin(), value.users.end());
    for (size_t begin = 0; begin <= size_; ++begin) {
      uint64_t* row = &in_[begin * (size_ + 1)];
      for (const Value& value : values) {
        if (value.maker >= begin) continue;
        const auto user = std::lower_bound(value.users.begin(), value.users.end(), begin);
        if (user != value.users.end()) row[*user + 1] += value.bytes;
      }
      for (size_t end = begin + 1; end <= size_; ++end) row[end] += row[end - 1];
    }
    for (size_t end = 0; end <= size_; ++end) {
      for (const Value& value : values)
        if (value.maker < end && value.users.back() >= end) out_[value.maker * (size_ + 1) + end] += value.bytes;
      for (size_t begin = end; begin-- > 0;)
        if (begin + 1 < end) out_[begin * (size_ + 1) + end] += out_[(begin + 1) * (size_ + 1) + end];
    }
  }

  const Costs& costs_;
  size_t stages_;
  size_t size_;
  std::vector<double> forward_, backward_;
  std::vector<uint64_t> kept_, parameters_;
  std::vector<uint64_t> in_, out_;
};

// best[stage][end]: of the first stage+1 stages over the first `end` layers, by `piece(stage, begin, end)` and `join`.
// Returns where each stage begins; nothing if every way costs infinitely much.
struct Best {
  double cost = kNever;
  std::vector<size_t> begins;
};

template <typename Piece, typename Join>
Best best_pieces(size_t layers, size_t stages, const Piece& piece, const Join& join) {
  std::vector<double> above(layers + 1, kNever);
  above[0] = 0;
  std::vector<std::vector<size_t>> choice(stages, std::vector<size_t>(layers + 1));
  for (size_t stage = 0; stage < stages; ++stage) {
    std::vector<double> row(layers + 1, kNever);
    for (size_t end = stage + 1; end <= layers; ++end) {
      for (size_t begin = stage; begin < end; ++begin) {
        if (above[begin] == kNever) continue;
        const double cost = join(above[begin], piece(stage, begin, end));
        if (cost < row[end]) row[end] = cost, choice[stage][end] = begin;
      }
    }
    above = std::move(row);
  }
  Best best{above[layers], std::vector<size_t>(stages)};
  size_t end = layers;
  for (size_t stage = stages; stage-- > 0;) best.begins[stage] = end = choice[stage][end];
  return best;
}

std::optional<Cut> best_cut(const Graph& graph, const std::vector<size_t>& order, size_t stages, const Costs& costs) {
  DDIP_CHECK(stages >= 1 && stages <= order.size(), "one layer for each stage at least");
  const Pieces pieces(graph, order, stages, costs);
  const auto time = [&](size_t stage, size_t begin, size_t end) {
    return pieces.fits(stage, begin, end) ? pieces.ms(stage, begin, end) : kNever;
  };
  const Best fastest =
      best_pieces(order.size(), stages, time, [](double before, double piece) { return std::max(before, piece); });
  if (fastest.cost == kNever) return std::nullopt;
  const auto bytes = [&](size_t stage, size_t begin, size_t end) {
    return time(stage, begin, end) <= fastest.cost ? static_cast<double>(pieces.sent(begin, end)) : kNever;
  };
  const Best lightest =
      best_pieces(order.size(), stages, bytes, [](double before, double piece) { return before + piece; });
  Cut cut{std::vector<size_t>(order.size()), std::vector<size_t>(stages)};
  for (size_t stage = 0; stage < stages; ++stage) {
    cut.device_of[stage] = stage;
    const size_t end = stage + 1 < stages ? lightest.begins[stage + 1] : order.size();
    for (size_t index = lightest.begins[stage]; index < end; ++index) cut.stage_of[order[index]] = stage;
  }
  return cut;
}

}  // namespace

Cut cut_chain(const Graph& graph, size_t stages, const Costs& costs) {
  if (auto cut = best_cut(graph, graph.order(), stages, costs)) return *cut;
  throw ConfigError(
      fmt::format("no cut into {} stages fits in {} per device", stages, bytes_in_words(costs.memory_cap)));
}

Cut cut_order(const Graph& graph, const std::vector<size_t>& order, size_t stages, const Costs& costs) {
  Costs without_cap = costs;
  without_cap.memory_cap = 0;
  if (auto cut = best_cut(graph, order, stages, costs)) return *cut;
  return *best_cut(graph, order, stages, without_cap);
}

}  // namespace ddip::partition
