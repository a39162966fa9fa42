// What somebody asks of a pipeline in C++, and what follows from it: decided, and refused where it cannot be, before a
// stage is made. Pure but for the optimizer that is looked at.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "ddip/pipeline/loss_scale.h"
#include "ddip/pipeline/stepping.h"
#include "ddip/schedule/plan.h"
#include "ddip/staleness/make_policy.h"

namespace ddip {

// Each micro-batch goes through the pipe `passes` times, on weights with noise of its own (docs/pipeline.md).
struct Smoothing {
  int passes = 1;
  double radius = 0;  // standard deviation of the noise; 0: off
};

// Names and meanings as in Python.
struct PipelineOptions {
  // seq, gpipe, 1f1b, interleaved, zb1, zbv, async_1f1b, virtual_async, 2bw, paci
  std::string schedule = "async_1f1b";
  // auto, or a policy: none, stash, msnag, … ("msnag+stash"); docs/staleness.md
  std::string staleness = "auto";
  staleness::Options staleness_options;  // what the policy can be told
  int micro_batches = 8;                 // of a batch
  // Synchronous: batches of a step; asynchronous: micro-batches of a step.
  int accumulate = 1;
  // plan, or ready: a rank does what has come first, a backward or a forward (docs/pipeline.md)
  std::string order = "plan";
  // By stage: how far forwards may run ahead of backwards. Empty: as far as the measured links ask for, else the
  // textbook's depth.
  std::vector<int> window;
  pipeline::RateFactor scheduler;           // of the rates, by step; empty: they stay
  double clip = 0;                          // largest norm of a step's gradient; 0: any
  std::string clipping = "auto";            // local, proportional, global; auto: global where it is exact, else local
  int replicas = 1;                         // pipelines side by side, each on its own batches, that step together
  std::string precision = "fp32";           // or bf16, fp16: autocast
  pipeline::LossScale::Options loss_scale;  // of fp16; {1024, 0}: it stays 1024
  bool recompute = false;                   // forwards keep no graph and run again before their backwards
  Smoothing smoothing;                      // of gradients, in the bubbles of synchronous schedules
  bool gaps = false;       // reports say how far weights moved between forwards and backwards (docs/pipeline.md)
  int max_staleness = -1;  // of virtual_async
  int64_t warmup = 0, flush_every = 0, switch_at = -1;  // in batches; asynchronous schedules
  uint64_t seed = 0;                                    // of dropout and whatever else draws numbers in a forward
  std::vector<int> placement;                           // rank of each stage; empty: in turn
  std::vector<schedule::Edge> edges;                    // from stage to stage; empty: each stage to the next
  schedule::Costs costs;         // what stages and links take, as pipeline::measured_cut found it; empty: nobody knows
  std::filesystem::path ledger;  // a file for what was done (docs/ledger.md); empty: none
  std::string program;           // the "file.py:factory" that `ddip replay` is to call
};

namespace pipeline {

struct Settings {
  PipelineOptions options;  // nothing is left out or called auto
  schedule::Request request;
  schedule::Plan plan;             // long enough to show what every batch of a longer run will be like
  std::vector<std::string> notes;  // what was asked for and is not so, for people
  int width = 1;                   // ranks of a replica
  int replica = 0;                 // which of them this is
  int place = 0;                   // which of its ranks this is
  std::vector<int> most_stale;     // by stage: steps that weights may be old, which stages are prepared for
  int norm_delay = 0;              // how many steps old a global norm is: so many that nobody waits for it

  const std::string& policy() const { return options.staleness; }
  bool has_policy(const std::string& part) const { return policy().find(part) != std::string::npos; }
  // The policy's options by their names, as Python's and a ledger's. Those of other policies are not in it.
  nlohmann::json policy_options() const;
  bool scales_loss() const { return options.precision == "fp16"; }
  // What the plan calls micro-batches: each goes as often as there are passes.
  int per_batch() const { return options.micro_batches * options.smoothing.passes; }
  bool synchronous() const { return schedule::is_synchronous(options.schedule); }
  // Whether a forward of this stage, or of any (-1), reads weights that are old at its backward.
  bool is_stale(int stage = -1) const;
  bool recomputes(int stage) const { return options.recompute && stage != request.stages - 1; }
  // The plan for so many batches after those that are done, checked.
  schedule::Plan plan_of(int64_t batches, int64_t done = 0) const;
  // Of all that the ranks must have alike.
  std::string fingerprint() const;
};

// Of one rank of `world`. Throws ConfigError.
Settings decided(PipelineOptions asked, size_t stages, int rank, int world, const MakeOptimizer& make,
                 const std::vector<at::Tensor>& parameters);

}  // namespace pipeline
}  // namespace ddip
