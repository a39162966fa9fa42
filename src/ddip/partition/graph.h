// A model as the partitioner sees it: layers with what they cost, and the values that flow between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddip::partition {

// So large that no model comes near them, so small that they can be added and multiplied: Graph sees to it that all
// bytes of a model, times its layers, are at most 64 times as many.
constexpr uint64_t kMostBytes = uint64_t{1} << 50;
constexpr double kMostMs = 1e12;

struct Node {
  std::string name;  // "encoder.0.conv1"
  double forward_ms = 0;
  double backward_ms = 0;
  uint64_t parameter_bytes = 0;
  uint64_t activation_bytes = 0;  // what the backward of one micro-batch needs kept
};

struct Edge {
  size_t from = 0;
  size_t to = 0;
  std::string value;  // a layer may give several; one value with several consumers is several edges
  std::string shape;  // for people and for checking: "float32[8, 64]"
  uint64_t bytes = 0;
};

class Graph {
 public:
  Graph() = default;
  // Throws ConfigError, one line: no layer, a name that is empty or there twice, a cost that is no number, an edge from
  // or to nowhere, one value with two shapes, a circle (with its layers' names). An empty `value` is its layer's name.
  Graph(std::vector<Node> nodes, std::vector<Edge> edges);

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Edge>& edges() const { return edges_; }  // those of one value side by side
  // Layers such that each comes behind all that it needs; of several that may be next, the first given.
  const std::vector<size_t>& order() const { return order_; }
  // Every layer feeds the next in order() by one value, and no other.
  bool is_chain() const;
  // Throws ConfigError with the nearest name.
  size_t index_of(std::string_view name) const;

 private:
  void sort_topologically();

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<size_t> order_;
};

}  // namespace ddip::partition
