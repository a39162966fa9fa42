#include "ddip/pipeline/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "ddip/base/error.h"
#include "ddip/partition/chain.h"
#include "ddip/pipeline/channel.h"
#include "ddip/pipeline/gather.h"
#include "ddip/pipeline/layer_cost.h"

namespace ddip::pipeline {
namespace {

using nlohmann::json;

// Longer than a message's latency, short enough to be sent a few times.
constexpr int64_t kLinkBytes = 4 << 20;
constexpr int kTimes = 3;

// How fast a value gets from a rank to the next one, on all ranks at once; the slowest link counts. All ranks. 0: one
// rank alone has no link. Only our own backend takes a GPU's tensors, through the host: its lanes between GPUs are
// faster.
double link_bytes_per_ms(tensors::Communicator& ranks, at::Device device) {
  if (ranks.name() != "shm") device = at::kCPU;
  const int world = ranks.world(), rank = ranks.rank();
  if (world < 2) return 0;
  const at::Tensor sent = at::zeros({kLinkBytes}, at::TensorOptions(at::kByte).device(device));
  at::Tensor received = at::empty_like(sent);
  double best = std::numeric_limits<double>::infinity();
  for (int time = 0; time <= kTimes; ++time) {
    ranks.barrier();
    const auto begin = std::chrono::steady_clock::now();
    auto comes = ranks.start_receive(received, (rank + world - 1) % world);
    auto goes = ranks.start_send(sent, (rank + 1) % world);
    comes->wait();
    goes->wait();
    if (device.is_cuda()) received.view(-1)[0].item();  // it has come when the GPU says so
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  at::Tensor slowest = at::full({1}, best, at::kDouble);
  ranks.all_reduce(slowest, comm::Reduction::max);
  return kLinkBytes / slowest.item<double>();
}

at::Device device_of(const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    if (!part.module) continue;
    for (const auto& tensors : {part.module->parameters(), part.module->buffers()}) {
      if (!tensors.empty()) return tensors.front().device();
    }
  }
  return at::kCPU;
}

std::vector<schedule::Edge> chain_of(size_t parts) {
  std::vector<schedule::Edge> edges;
  for (int i = 0; i + 1 < static_cast<int>(parts); ++i) edges.push_back({i, i + 1});
  return edges;
}

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

struct Measured {
  std::vector<LayerCost> layers;
  std::vector<uint64_t> edge_bytes;
};

// Round by round: what disturbs the machine for a moment disturbs no layer each time.
Measured measured(const std::vector<Part>& parts, const Value& example, const std::vector<schedule::Edge>& edges,
                  const char* kind) {
  Measured found{.layers = {}, .edge_bytes = std::vector<uint64_t>(edges.size())};
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
    LayerCost::Place place{.name = fmt::format("{} {} ({})", kind, i, parts[i].name),
                           .elsewhere = elsewhere,
                           .outgoing = outgoing.size(),
                           .gives_gradients = gradients[i]};
    LayerCost& layer = found.layers.emplace_back(parts[i], std::move(place), std::move(inputs));
    for (size_t out = 0; out < outgoing.size(); ++out) {
      on_edge[outgoing[out]] = layer.outputs().at(out);
      found.edge_bytes[outgoing[out]] = bytes_of(layer.outputs()[out]);
    }
  }
  for (int time = 0; time <= kTimes; ++time) {
    for (LayerCost& layer : found.layers) layer.measure();
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

// Of layers one behind the other: the stage of each.
std::vector<size_t> stages_of(const Measured& found, size_t stages, bool recompute, double link) {
  std::vector<partition::Node> nodes;
  std::vector<partition::Edge> edges;
  for (size_t i = 0; i < found.layers.size(); ++i) {
    const LayerCost& layer = found.layers[i];
    nodes.push_back({.name = std::to_string(i),
                     .forward_ms = layer.forward_ms(),
                     .backward_ms = layer.backward_ms(),
                     .parameter_bytes = layer.parameter_bytes()});
    if (i > 0) edges.push_back({.from = i - 1, .to = i, .value = {}, .shape = {}, .bytes = found.edge_bytes[i - 1]});
  }
  const partition::Graph graph(std::move(nodes), std::move(edges));
  return partition::cut_chain(graph, stages, {.link_bytes_per_ms = link, .recompute = recompute}).stage_of;
}

}  // namespace

MeasuredCut measured_cut(tensors::Communicator& ranks, torch::nn::Sequential model, const Value& example,
                         const CutOptions& options) {
  require_messages(ranks);
  const int stages = options.stages == 0 ? ranks.world() : options.stages;
  static_cast<void>(cut(model, stages));  // says what is wrong with the number
  std::vector<Part> layers = cut(model, static_cast<int>(model->size()));
  for (Part& layer : layers) layer.name = Part::kind_of(*layer.module->children().front());
  const double link = link_bytes_per_ms(ranks, device_of(layers));
  const json found = of_rank_0(ranks, [&]() -> json {
    const Measured each = measured(layers, example, chain_of(layers.size()), "layer");
    const std::vector<size_t> stage_of = stages_of(each, static_cast<size_t>(stages), options.recompute, link);
    std::vector<int> ends(static_cast<size_t>(stages));
    std::vector<double> forward(ends.size()), backward(ends.size()), links;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const size_t stage = stage_of[layer];
      ends[stage] = static_cast<int>(layer) + 1;
      forward[stage] += each.layers[layer].forward_ms();
      backward[stage] += each.layers[layer].backward_ms();
    }
    for (size_t stage = 0; stage + 1 < ends.size(); ++stage) {
      const auto bytes = static_cast<double>(each.edge_bytes[static_cast<size_t>(ends[stage]) - 1]);
      links.push_back(link > 0 ? bytes / link : 0);
    }
    return {{"ends", ends}, {"forward", forward}, {"backward", backward}, {"links", links}};
  });
  MeasuredCut made{.parts = cut_at(model, found["ends"].get<std::vector<int>>()), .costs = {}};
  refuse_tied(made.parts);  // a layer that the model has twice
  for (size_t stage = 0; stage < made.parts.size(); ++stage) {
    const double forward = found["forward"][stage], backward = found["backward"][stage];
    const bool again = options.recompute && stage + 1 < made.parts.size();
    made.costs.stages.push_back(stage_cost(forward, backward + (again ? forward : 0)));
  }
  made.costs.links = found["links"].get<std::vector<double>>();
  return made;
}

schedule::Costs measured_costs(tensors::Communicator& ranks, const std::vector<Part>& stages, const Value& example,
                               std::vector<schedule::Edge> edges) {
  require_messages(ranks);
  if (edges.empty()) edges = chain_of(stages.size());
  require_edges(edges, stages.size());
  const double link = link_bytes_per_ms(ranks, device_of(stages));
  const json found = of_rank_0(ranks, [&]() -> json {
    const Measured each = measured(stages, example, edges, "stage");
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
