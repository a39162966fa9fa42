// Data parallel training of a libtorch module:
//
//   auto context = ddip::Context::from_environment();
//   ddip::DataParallel model(context, Net());
//   torch::optim::SGD optimizer(model->parameters(), 0.1);
//   loss(model.forward(x), y).backward();  // gradients are the mean over all ranks
//   optimizer.step();
#pragma once

#include <torch/nn/module.h>

#include "ddip/data_parallel/replica.h"
#include "ddip/tensors/context.h"

namespace ddip {

// `Holder`: what TORCH_MODULE makes, or a std::shared_ptr to a torch::nn::Module.
template <typename Holder>
class DataParallel {
 public:
  struct Options {
    std::string compress = "none";  // fp16, bf16, int8, topk, powersgd
    double bucket_mb = 25;
    bool find_unused = true;
    bool static_graph = false;
    bool broadcast_buffers = true;
    // Drop the gradients of a step in which one is not finite, on all ranks; with compression always.
    bool skip_nonfinite = false;
  };

  // All ranks. The model becomes what it is on rank 0.
  DataParallel(Context& context, Holder module, const Options& options = {})
      : module_(std::move(module)),
        replica_([&context] { return context.communicator(); }, model_of(module_), reducer_options(options),
                 options.broadcast_buffers) {}

  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    replica_.before_forward();
    return module_->forward(std::forward<Arguments>(arguments)...);
  }

  // The module itself, for everything else.
  auto* operator->() { return &*module_; }
  Holder& module() { return module_; }

  // While it lives, backwards only add up gradients; the next one averages the sum.
  class NoSync {
   public:
    explicit NoSync(data_parallel::Replica& replica) : replica_(replica), before_(replica.sync()) {
      replica_.set_sync(false);
    }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;
    ~NoSync() { replica_.set_sync(before_); }

   private:
    data_parallel::Replica& replica_;
    const bool before_;
  };
  NoSync no_sync() { return NoSync(replica_); }

  // Ranks may have different numbers of batches: `train` runs until this rank has none, then takes part until all have
  // ended. At the end all have the newest model.
  template <typename Body>
  void join(Body&& train, bool divide_by_all = false) {
    replica_.begin_join(divide_by_all);
    try {
      std::forward<Body>(train)();
    } catch (...) {
      replica_.abandon_join();
      throw;
    }
    replica_.end_join();
  }

  // What compression keeps on this rank from one step for the next: saved and given back, on all ranks, a run goes on
  // as if it had not ended.
  tensors::NamedTensors compression_state() { return replica_.compression_state(); }
  void load_compression_state(const tensors::NamedTensors& state) { replica_.load_compression_state(state); }

  data_parallel::ReducerStats stats() { return replica_.take_stats(); }

 private:
  static data_parallel::Model model_of(Holder& module) {
    torch::nn::Module* inside = &*module;  // lives as long as the holder, which is ours
    return {.parameters = [inside] { return inside->parameters(); },
            .names = [inside] { return inside->named_parameters().keys(); },
            .buffers = [inside] { return inside->buffers(); },
            .training = [inside] { return inside->is_training(); }};
  }
  static data_parallel::ReducerOptions reducer_options(const Options& options) {
    auto bytes = [](double megabytes) { return static_cast<size_t>(megabytes * (1 << 20)); };
    data_parallel::ReducerOptions result;
    result.buckets = {bytes(std::min(1.0, options.bucket_mb)), bytes(options.bucket_mb)};
    result.find_unused = options.find_unused;
    result.static_graph = options.static_graph;
    result.compressor = data_parallel::make_compressor(options.compress);
    result.keep_nonfinite = !result.compressor && !options.skip_nonfinite;
    return result;
  }

  Holder module_;
  data_parallel::Replica replica_;
};

}  // namespace ddip
