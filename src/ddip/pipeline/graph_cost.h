// A graph as the partitioner sees it: its layers, each measured alone, and what flows between them.
#pragma once

#include <string>
#include <vector>

#include "ddip/partition/graph.h"
#include "ddip/pipeline/graph.h"

namespace ddip::pipeline {

struct GraphCost {
  // A group that reads an input of the model: in a late stage it has to be brought there.
  struct InputRead {
    std::string input;
    size_t group;
    uint64_t bytes;
  };

  // By layer, in the order of Graph::layers(). Layers that share weights or buffers are one group with all between
  // them; all others are groups of their own.
  std::vector<size_t> group_of;
  partition::Graph graph;  // of groups
  std::vector<InputRead> inputs;
};

// `example`: the inputs of one micro-batch. `with_memory`: counts what forwards keep. Buffers and random numbers are
// afterwards as they were. Throws ConfigError: a layer cannot run, or changes in place what another one reads.
GraphCost measured(const Graph& graph, const Value& example, bool with_memory);

std::vector<Part> parts_of(const Graph& graph);

}  // namespace ddip::pipeline
