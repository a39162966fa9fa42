// One rank's copy of a model: planned for the reducer as it is now, planned anew when it changes, its buffers those of
// rank 0. What a model is, the caller says: a module of C++ or of Python.
#pragma once

#include "ddip/data_parallel/reducer.h"
#include "ddip/tensors/tensor_bytes.h"

namespace ddip::data_parallel {

struct Model {
  std::function<std::vector<at::Tensor>()> parameters;  // each once, in an order that is the same on all ranks
  std::function<std::vector<std::string>()> names;      // of the parameters
  std::function<std::vector<at::Tensor>()> buffers;
  std::function<bool()> training;
};

class Replica {
 public:
  // Asked for at every step: after a rebuild it is another one.
  using Ranks = std::function<std::shared_ptr<tensors::Communicator>()>;

  // All ranks. Every parameter and buffer becomes what it is on rank 0.
  Replica(Ranks ranks, Model model, ReducerOptions options, bool broadcast_buffers);

  // Before every forward, on all ranks.
  void before_forward();
  // Plans anew if the model has changed (moved, converted, a part replaced) or the ranks have.
  void refresh();

  void set_sync(bool sync);
  bool sync() const { return sync_; }

  // Between these two, ranks may do different numbers of steps. At the end all have the newest model.
  void begin_join(bool divide_by_all);
  // The rank whose model it is.
  int end_join();
  void abandon_join() { reducer_->abandon_join(); }

  // The model has got another wrapper, which does all this now.
  void retire();

  // Names of what differs between the ranks.
  std::vector<std::string> differing(const std::vector<std::string>& buffer_names);

  // What compression keeps on this rank for the next step, by names, to be saved beside the model; empty if it keeps
  // nothing. A run that is given it back goes on as if it had not ended.
  tensors::NamedTensors compression_state();
  // All ranks. Throws ConfigError for what this model has no parameter for.
  void load_compression_state(const tensors::NamedTensors& state);

  ReducerStats take_stats() { return reducer_->take_stats(); }
  const Reducer& reducer() const { return *reducer_; }
  const std::shared_ptr<Compressor>& compressor() const { return options_.compressor; }

  void plan();
  void sync_buffers(int root);

 private:
  void broadcast(int root);
  void in_order(const std::function<void()>& body);
  // What load_compression_state is given, for parameters that are here. Throws ConfigError.
  Kept taken(const tensors::NamedTensors& state, std::vector<int64_t>& order) const;

  const Ranks current_;
  const Model model_;
  const ReducerOptions options_;
  const bool broadcast_buffers_;
  bool sync_ = true;
  bool retired_ = false;
  std::shared_ptr<tensors::Communicator> ranks_;
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace ddip::data_parallel
