// A graph's layers as stages, with an edge between two stages for what one of them reads of the other:
//
//   auto model = ddip::pipeline::cut(net, {{"down"}, {"deep"}, {"up"}});
//   ddip::Pipeline pipe(context, model.parts, loss, optimizer, {.placement = {0, 1, 0}, .edges = model.edges});
#pragma once

#include <string>
#include <vector>

#include "ddip/pipeline/graph.h"
#include "ddip/schedule/request.h"

namespace ddip::pipeline {

struct GraphCut {
  std::vector<Part> parts;
  std::vector<schedule::Edge> edges;  // for PipelineOptions
};

// By stage the names of its layers. Throws ConfigError, one line: an empty stage, a layer in none or in two, an unknown
// one (with the nearest), one that reads what only a later stage has.
GraphCut cut(const Graph& graph, const std::vector<std::vector<std::string>>& stages);
// Stages of as many layers, in the order in which they were added.
GraphCut cut(const Graph& graph, int stages);
// By layer its stage, as in graph.layers().
// REQUIRES: no stage is empty, and none reads what only a later one has.
GraphCut cut_by(const Graph& graph, const std::vector<size_t>& stage_of);

// That each stage of a graph is brought what it takes. Throws ConfigError that names it.
void require_edges_of_graph(const std::vector<Part>& parts, const std::vector<schedule::Edge>& edges);

}  // namespace ddip::pipeline
