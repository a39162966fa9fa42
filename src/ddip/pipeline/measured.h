// What the stages of a model and the links between ranks cost, measured where they are: for a cut whose slowest stage
// is as fast as can be, and a window as wide as the links ask for.
//
//   auto model = ddip::pipeline::measured_cut(*context.communicator(), sequential, example);
//   ddip::Pipeline pipe(context, model.parts, loss, optimizer,
//                       {.window = model.window, .placement = model.placement, .edges = model.edges, .costs =
//                       model.costs});
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "ddip/pipeline/graph.h"
#include "ddip/schedule/request.h"
#include "ddip/tensors/communicator.h"

namespace ddip::pipeline {

struct CutOptions {
  int stages = 0;          // 0: one for each rank
  bool recompute = false;  // of the pipeline: all stages but the last run their forwards twice
  // single: a stage on each rank. mirrored: the beginning of a graph and its end on one rank, so that no skip between
  // them crosses a link (a U-Net). mixed: the fastest that a search finds with several stages on a rank, or the
  // mirrored one where it is not much slower, because less waits in buffers. For these two `stages` counts the ranks:
  // with replicas, those of one pipeline.
  std::string placement = "single";
  // Bytes of a rank's device; 0: no limit. Weights, a copy, gradients and momentum count, and what each layer keeps of
  // as many micro-batches as are under way.
  uint64_t memory_cap = 0;
};

// What Pipeline takes, under the names of PipelineOptions.
struct MeasuredCut {
  std::vector<Part> parts;
  std::vector<schedule::Edge> edges;
  std::vector<int> placement;  // empty: stages in turn
  schedule::Costs costs;       // milliseconds, of stages and links
  // Empty: as wide as the links ask for. Else the textbook's, because with that one memory_cap would be exceeded.
  std::vector<int> window;
};

// All ranks call these, with the same model, on an idle machine. `example`: the inputs of one micro-batch. Rank 0
// measures layers one after the other, links are measured by all; all ranks get the same. Parameters, their gradients,
// buffers and random numbers are afterwards as they were. Throw ConfigError, on all ranks.

// As few milliseconds in the slowest rank as a search finds, exchange included; of a chain, as any cut has.
MeasuredCut measured_cut(tensors::Communicator& ranks, const Graph& graph, const Value& example,
                         const CutOptions& options = {});
MeasuredCut measured_cut(tensors::Communicator& ranks, torch::nn::Sequential model, const Value& example,
                         const CutOptions& options = {});
// Of stages that are cut already. `edges`: as PipelineOptions::edges.
schedule::Costs measured_costs(tensors::Communicator& ranks, const std::vector<Part>& stages, const Value& example,
                               std::vector<schedule::Edge> edges = {});

}  // namespace ddip::pipeline
