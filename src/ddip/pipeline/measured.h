// What the stages of a model and the links between ranks cost, measured where they are: for a cut whose slowest stage
// is as fast as can be, and a window as wide as the links ask for.
//
//   auto model = ddip::pipeline::measured_cut(*context.communicator(), sequential, example);
//   ddip::Pipeline pipe(context, model.parts, loss, optimizer, {.costs = model.costs});
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "ddip/pipeline/part.h"
#include "ddip/schedule/request.h"
#include "ddip/tensors/communicator.h"

namespace ddip::pipeline {

struct CutOptions {
  int stages = 0;          // 0: one for each rank
  bool recompute = false;  // of the pipeline: all stages but the last run their forwards twice
};

struct MeasuredCut {
  std::vector<Part> parts;
  schedule::Costs costs;  // milliseconds, of stages and links
};

// All ranks call these, with the same model, on an idle machine. `example`: the inputs of one micro-batch. Rank 0
// measures layers one after the other, links are measured by all; all ranks get the same. Parameters, their gradients,
// buffers and random numbers are afterwards as they were. Throw ConfigError, on all ranks.

// As few milliseconds in the slowest stage as any cut of a chain of layers has, exchange included.
MeasuredCut measured_cut(tensors::Communicator& ranks, torch::nn::Sequential model, const Value& example,
                         const CutOptions& options = {});
// Of stages that are cut already. `edges`: as PipelineOptions::edges.
schedule::Costs measured_costs(tensors::Communicator& ranks, const std::vector<Part>& stages, const Value& example,
                               std::vector<schedule::Edge> edges = {});

}  // namespace ddip::pipeline
