// A graph as the partitioner sees it: its layers, each measured alone, and what flows between them.
#pragma once

#include <string>
#include <vector>

#include "ddip/partition/graph.h"
#include "ddip/pipeline/graph.h"

namespace ddip::pipeline {

struct GraphCost {
  // A layer that reads an input of the model: in a late stage it has to be brought there.
  struct InputRead {
    std::string input;
    size_t layer;
    uint64_t bytes;
  };

  partition::Graph graph;  // layers in the order of Graph::layers()
  std::vector<InputRead> inputs;
};

// `example`: the inputs of one micro-batch. Buffers and random numbers are afterwards as they were. Throws ConfigError:
// a layer cannot run, or changes in place what another one reads.
GraphCost measured(const Graph& graph, const Value& example);

std::vector<Part> parts_of(const Graph& graph);

}  // namespace ddip::pipeline
