// What a cut costs: time of the slowest device for one micro-batch, memory, bytes on links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ddip/partition/graph.h"

namespace ddip::partition {

struct Costs {
  double link_bytes_per_ms = 0;  // one direction of a device's link; 0: links cost nothing
  bool recompute = false;        // every stage but the last runs its forward again before its backward
  uint64_t memory_cap = 0;       // bytes of one device; 0: no cap
  // Weights, the copy that is computed with, gradient, momentum: as the executor holds them for SGD.
  double parameter_copies = 4;

  // What parameters of that size take.
  uint64_t held(uint64_t parameter_bytes) const;
};

// Throws ConfigError.
void check_costs(const Costs& costs);

// Stages are numbered in the order in which a micro-batch passes them: no edge leads to an earlier stage.
struct Cut {
  std::vector<size_t> stage_of;   // by layer
  std::vector<size_t> device_of;  // by stage

  size_t stages() const { return device_of.size(); }
  size_t devices() const;  // the largest number used, plus one
};

struct DeviceCost {
  double compute_ms = 0;
  double link_ms = 0;
  uint64_t link_bytes = 0;  // activations of one micro-batch; as many bytes of gradients travel the other way
  uint64_t memory_bytes = 0;

  // Transfers hide behind compute as far as they can: compute + max(0, link − compute).
  double ms() const { return compute_ms > link_ms ? compute_ms : link_ms; }
};

struct Cost {
  std::vector<DeviceCost> devices;
  double slowest_ms = 0;
  uint64_t link_bytes = 0;    // a value counts once for each device that it is sent to
  uint64_t excess_bytes = 0;  // over the memory cap, of all devices together
};

// Memory of a device: parameter_copies × parameters, and for stage i of S the activations of S−i micro-batches, as many
// as 1F1B has in flight there (with recomputation: their inputs, and the activations of one).
// REQUIRES: a cut of this graph, as check_cut() demands.
Cost cost_of(const Graph& graph, const Cut& cut, const Costs& costs);

// Throws ConfigError, one line: a stage without layers, more stages than layers, an edge that leads back.
void check_cut(const Graph& graph, const Cut& cut);
// Throws ConfigError that names the stages of the first device over the cap.
void check_memory(const Graph& graph, const Cut& cut, const Costs& costs);

// Forward and backward of all layers on one device.
double whole_ms(const Graph& graph);
// Micro-batches per second against one device that holds everything, in the steady state.
double speed_up(const Graph& graph, const Cost& cost);
// Share of the devices' time in which they wait for the slowest one, in the steady state.
double bubble(const Cost& cost);
// The same where the pipe runs empty after every `micro_batches`: the first one passes all stages, and each other one
// comes out behind it as fast as the slowest device lets it.
double bubble_with_flush(const Cost& cost, size_t micro_batches);

// "1.5 GiB"
std::string bytes_in_words(uint64_t bytes);

}  // namespace ddip::partition
