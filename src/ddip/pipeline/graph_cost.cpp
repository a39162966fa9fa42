#include "ddip/pipeline/graph_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ddip/pipeline/kept_buffers.h"
#include "ddip/pipeline/layer_cost.h"
#include "ddip/pipeline/random.h"

namespace ddip::pipeline {
namespace {

// Otherwise no layer can spoil what another one reads.
bool has_branches(const Graph& graph) {
  std::vector<int> readers(graph.nodes().size());
  for (size_t layer : graph.layers()) {
    for (size_t read : graph.nodes()[layer].reads) ++readers[read];
  }
  return std::ranges::any_of(readers, [](int several) { return several > 1; });
}

// The model once as a whole: whether its layers leave each other's values alone.
void try_out(const Graph& graph, const Value& example) {
  std::vector<at::Tensor> buffers;
  const std::vector<Part> parts = parts_of(graph);
  for (const Part& part : parts) {
    if (part.module) std::ranges::copy(part.module->buffers(), std::back_inserter(buffers));
  }
  const at::NoGradGuard quiet;
  const KeptBuffers kept(std::move(buffers));
  const at::Device device = device_of(parts);
  const OwnRandomNumbers numbers(0, device);
  graph.run(with_tensors(to_device(example, device), [](const at::Tensor& one) { return one.clone(); }));
  for (const Part& part : parts) {
    if (part.auxiliary_losses) part.auxiliary_losses();  // they keep them until they are asked
  }
}

}  // namespace

std::vector<Part> parts_of(const Graph& graph) {
  std::vector<Part> parts;
  for (size_t layer : graph.layers()) parts.push_back(*graph.nodes()[layer].layer);
  return parts;
}

GraphCost measured(const Graph& graph, const Value& example) {
  std::vector<Value> values(graph.nodes().size());
  graph.spread(example, values);
  const std::vector<Part> parts = parts_of(graph);
  const at::Device elsewhere = device_of(parts);
  std::map<size_t, size_t> place;            // of a node, among the layers
  std::vector<bool> trained(values.size());  // it, or something before it
  std::vector<LayerCost> layers;
  layers.reserve(parts.size());
  std::vector<partition::Edge> edges;
  std::vector<GraphCost::InputRead> read_inputs;
  for (size_t node : graph.layers()) {
    const auto& [name, part, reads] = graph.nodes()[node];
    const size_t here = layers.size();
    std::vector<Value> inputs;
    bool gradients = false;  // an input of the model that crosses a border gets one, too, which is not reckoned with
    for (size_t read : reads) {
      inputs.push_back(values[read]);
      gradients = gradients || trained[read];
      const std::string& source = graph.nodes()[read].name;
      if (!place.contains(read))
        read_inputs.push_back({.input = source, .layer = here, .bytes = bytes_of(values[read])});
      else if (std::ranges::none_of(
                   edges, [&](const partition::Edge& edge) { return edge.from == place[read] && edge.to == here; }))
        edges.push_back({.from = place[read],
                         .to = here,
                         .value = source,
                         .shape = describe(values[read]),
                         .bytes = bytes_of(values[read])});
    }
    place[node] = here;
    trained[node] = gradients || trained_elements(*part) > 0;
    LayerCost& layer = layers.emplace_back(*part,
                                           LayerCost::Place{.name = fmt::format("layer {} ({})", name, part->name),
                                                            .elsewhere = elsewhere,
                                                            .outgoing = 1,
                                                            .gives_gradients = gradients},
                                           std::move(inputs));
    values[node] = layer.outputs().at(0);
  }
  if (has_branches(graph)) try_out(graph, example);
  measure(layers);
  std::vector<partition::Node> nodes;
  for (const auto& [node, index] : place) {
    nodes.push_back({.name = graph.nodes()[node].name,
                     .forward_ms = layers[index].forward_ms(),
                     .backward_ms = layers[index].backward_ms(),
                     .parameter_bytes = layers[index].parameter_bytes(),
                     .activation_bytes = layers[index].count_activations()});
  }
  return {.graph = {std::move(nodes), std::move(edges)}, .inputs = std::move(read_inputs)};
}

}  // namespace ddip::pipeline
