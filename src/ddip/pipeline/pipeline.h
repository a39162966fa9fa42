// A model cut into stages, one or more for each rank, trained by a schedule with a staleness policy (docs/pipeline.md):
//
//   auto context = ddip::Context::from_environment();
//   ddip::Pipeline pipe(context, ddip::pipeline::cut(model, context.world_size()),
//                       [](const at::Tensor& out, const at::Tensor& y) { return torch::mse_loss(out, y); },
//                       [](auto parameters) { return std::make_unique<torch::optim::SGD>(parameters, 0.1); },
//                       {.schedule = "async_1f1b", .micro_batches = 8});
//   auto report = pipe.run(batches);
//
// Every rank makes it with the same arguments and the same initial weights, and calls the same methods.
#pragma once

#include <memory>

#include "ddip/pipeline/batches.h"
#include "ddip/pipeline/gather.h"
#include "ddip/pipeline/loss_function.h"
#include "ddip/pipeline/part.h"
#include "ddip/pipeline/report.h"
#include "ddip/pipeline/stepping.h"
#include "ddip/schedule/plan.h"
#include "ddip/tensors/context.h"

namespace ddip {

using pipeline::Batch;

struct PipelineOptions {
  // seq, gpipe, 1f1b, interleaved, zb1, zbv, async_1f1b, virtual_async, 2bw, paci
  std::string schedule = "async_1f1b";
  // auto, or a policy: none, stash, msnag, … ("msnag+stash"); docs/staleness.md
  std::string staleness = "auto";
  int micro_batches = 8;  // of a batch
  // Synchronous: batches of a step; asynchronous: micro-batches of a step.
  int accumulate = 1;
  std::vector<int> window;         // by stage: how far forwards may run ahead of backwards; empty: the textbook's depth
  pipeline::RateFactor scheduler;  // of the rates, by step; empty: they stay
  double clip = 0;                 // largest norm of a stage's gradient; 0: any
  std::string precision = "fp32";  // or bf16: autocast
  bool recompute = false;          // forwards keep no graph and run again before their backwards
  int max_staleness = -1;          // of virtual_async
  int64_t warmup = 0, flush_every = 0, switch_at = -1;  // in batches; asynchronous schedules
  uint64_t seed = 0;                                    // of dropout and whatever else draws numbers in a forward
  std::vector<int> placement;                           // rank of each stage; empty: in turn
  std::filesystem::path ledger;                         // a file for what was done (docs/ledger.md); empty: none
  std::string program;                                  // the "file.py:factory" that `ddip replay` is to call
  std::vector<schedule::Edge> edges;                    // from stage to stage; empty: each stage to the next
};

class Pipeline {
 public:
  using Options = PipelineOptions;

  // All ranks. `model`: a stage each, or what pipeline::cut made of a torch::nn::Sequential. `loss`: of the last
  // stage's output and the target, the mean over the samples or (sum, count). Throws ConfigError.
  Pipeline(std::shared_ptr<Communicator> ranks, std::vector<pipeline::Part> model, pipeline::LossFunction loss,
           pipeline::MakeOptimizer optimizer, Options options = {});
  Pipeline(Context& context, std::vector<pipeline::Part> model, pipeline::LossFunction loss,
           pipeline::MakeOptimizer optimizer, Options options = {});
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Trains on them. Every rank gives its own, equally seeded and equally many: the first stage reads x, the last y.
  // Throws what a stage threw; on the other ranks StageFailed, which says where and what. It can run again then.
  pipeline::Report run(const pipeline::Batches& batches);
  // The losses of the newest weights, without training.
  pipeline::Report evaluate(const pipeline::Batches& batches);

  // The newest true weights and buffers of the whole model, on every rank and on its CPU: "0.weight", … by stage, or
  // the names that pipeline::cut found.
  pipeline::NamedTensors state();

  // What was chosen, and what was asked for and is not so, for people.
  const std::string& staleness() const;
  const std::vector<std::string>& notes() const;
  // What runs next, or ran last.
  const schedule::Plan& plan() const;
  // This rank's stages, and the optimizer of one of them; null: it has nothing to train.
  std::vector<int> stages() const;
  torch::optim::Optimizer* optimizer(int stage);

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace ddip
