#include "ddip/pipeline/graph_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ddip/pipeline/kept_buffers.h"
#include "ddip/pipeline/layer_cost.h"
#include "ddip/pipeline/random.h"

namespace ddip::pipeline {
namespace {

// Otherwise no layer can spoil what another one reads.
bool has_branches(const Graph& graph) {
  for (size_t node = 0; node < graph.nodes().size(); ++node) {
    if (graph.readers(node).size() > 1) return true;
  }
  return false;
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
}

// By layer. What lies between two layers of a stage is in that stage, too.
std::vector<size_t> groups_of(const std::vector<Part>& parts) {
  std::map<const at::TensorImpl*, size_t> last_user;
  std::vector<bool> stays(parts.size());  // with the layer before it
  for (size_t layer = 0; layer < parts.size(); ++layer) {
    if (!parts[layer].module) continue;
    for (const auto& tensors : {parts[layer].module->parameters(), parts[layer].module->buffers()}) {
      for (const at::Tensor& tensor : tensors) {
        auto [place, is_new] = last_user.try_emplace(tensor.unsafeGetTensorImpl(), layer);
        for (size_t between = place->second + 1; between <= layer; ++between) stays[between] = true;
        place->second = layer;
      }
    }
  }
  std::vector<size_t> groups(parts.size());
  for (size_t layer = 1; layer < parts.size(); ++layer) groups[layer] = groups[layer - 1] + (stays[layer] ? 0 : 1);
  return groups;
}

GraphCost grouped(const Graph& graph, const std::vector<Value>& values, const std::vector<LayerCost>& layers,
                  bool with_memory) {
  GraphCost made{.group_of = groups_of(parts_of(graph)), .graph = {}, .inputs = {}};
  std::map<size_t, size_t> home;  // of a node, among the groups
  std::vector<partition::Node> nodes(made.group_of.back() + 1);
  std::set<std::pair<size_t, size_t>> counted;  // groups and weights
  size_t index = 0;
  for (size_t node : graph.layers()) {
    const LayerCost& layer = layers[index];
    const size_t group = home[node] = made.group_of[index++];
    partition::Node& whole = nodes[group];
    if (whole.name.empty()) whole.name = graph.nodes()[node].name;
    whole.forward_ms += layer.forward_ms();
    whole.backward_ms += layer.backward_ms();
    if (with_memory) whole.activation_bytes += layer.count_activations();
    for (const auto& [name, tensor] : parameters_of(*graph.nodes()[node].layer)) {
      if (counted.emplace(group, reinterpret_cast<size_t>(tensor.unsafeGetTensorImpl())).second)
        whole.parameter_bytes += tensor.nbytes();
    }
  }
  std::vector<partition::Edge> edges;
  for (size_t node = 0; node < graph.nodes().size(); ++node) {
    const std::vector<size_t>& readers = graph.readers(node);
    std::set<size_t> reached;
    if (graph.nodes()[node].layer) reached.insert(home[node]);
    for (size_t reader : readers) {
      if (!reached.insert(home[reader]).second) continue;
      const uint64_t bytes = bytes_of(values[node]);
      const std::string& name = graph.nodes()[node].name;
      if (!graph.nodes()[node].layer) made.inputs.push_back({.input = name, .group = home[reader], .bytes = bytes});
      // The first stage has the inputs. Where the first one of those that read an input is, it need not be sent to.
      const size_t from = graph.nodes()[node].layer ? home[node] : home[readers.front()];
      if (from != home[reader])
        edges.push_back(
            {.from = from, .to = home[reader], .value = name, .shape = describe(values[node]), .bytes = bytes});
    }
  }
  made.graph = {std::move(nodes), std::move(edges)};
  return made;
}

}  // namespace

std::vector<Part> parts_of(const Graph& graph) {
  std::vector<Part> parts;
  for (size_t layer : graph.layers()) parts.push_back(*graph.nodes()[layer].layer);
  return parts;
}

GraphCost measured(const Graph& graph, const Value& example, bool with_memory) {
  std::vector<Value> values(graph.nodes().size());
  graph.spread(example, values);
  const std::vector<Part> parts = parts_of(graph);
  const at::Device elsewhere = device_of(parts);
  std::vector<bool> trained(values.size());  // a node, or something before it
  std::vector<LayerCost> layers;
  layers.reserve(parts.size());
  for (size_t node : graph.layers()) {
    const auto& [name, part, reads, identity] = graph.nodes()[node];
    std::vector<Value> inputs;
    bool gradients = false;  // an input of the model that crosses a border gets one, too, which is not reckoned with
    for (size_t read : reads) {
      inputs.push_back(values[read]);
      gradients = gradients || trained[read];
    }
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
  return grouped(graph, values, layers, with_memory);
}

}  // namespace ddip::pipeline
