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

#include <filesystem>
#include <memory>

#include "ddip/pipeline/batches.h"
#include "ddip/pipeline/gather.h"
#include "ddip/pipeline/graph_cut.h"
#include "ddip/pipeline/measured.h"
#include "ddip/pipeline/metrics.h"
#include "ddip/pipeline/part.h"
#include "ddip/pipeline/report.h"
#include "ddip/pipeline/saved_cut.h"
#include "ddip/pipeline/settings.h"
#include "ddip/schedule/file.h"
#include "ddip/tensors/context.h"

namespace ddip {

using pipeline::Batch;

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
  // The same in another order of what plan_of(batches.size()) has, that somebody has written or edited.
  pipeline::Report run(const pipeline::Batches& batches, const schedule::Plan& own);
  schedule::Plan plan_of(int64_t batches) const;
  // The losses of the newest weights, without training. `metrics`: functions of (output, target) as a loss is one, each
  // under its name; the report has their means.
  pipeline::Report evaluate(const pipeline::Batches& batches, pipeline::Metrics metrics = {});

  // The newest true weights and buffers of the whole model, on every rank and on its CPU: "0.weight", … by stage, or
  // the names that pipeline::cut found.
  pipeline::NamedTensors state();

  // Everything that a later run needs, into a folder that all ranks see; each writes what is its own. The newest save
  // is the one that is loaded, and a crash at any moment leaves the one before. Throws ConfigError.
  void save(const std::filesystem::path& folder);
  // What save wrote, into a pipeline that was made with the same arguments: a run goes on then as after a drain, bit by
  // bit. Throws ConfigError, with nothing changed on any rank.
  void load(const std::filesystem::path& folder);

  // What was chosen, and what was asked for and is not so, for people.
  const std::string& staleness() const;
  const std::vector<std::string>& notes() const;
  // What runs next, or ran last; with order="ready", what would have run if nothing had come late.
  const schedule::Plan& plan() const;
  int replica() const;  // which of the pipelines side by side this is
  // This rank's stages, and the optimizer of one of them; null: it has nothing to train.
  std::vector<int> stages() const;
  torch::optim::Optimizer* optimizer(int stage);

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace ddip
