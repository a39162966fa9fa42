// Trains a U-Net on all ranks, epoch by epoch, and keeps what is needed to go on after an interruption.
#pragma once

#include <functional>
#include <memory>

#include "ddip/data_parallel/data_parallel.h"
#include "ddip/models/adam.h"
#include "ddip/models/unet/evaluation.h"
#include "ddip/models/unet/progress.h"
#include "ddip/models/unet/run_folder.h"
#include "ddip/tensors/tensor_bytes.h"

namespace ddip::models::unet {

class Trainer {
 public:
  struct Options {
    int local_rank = 0;  // chooses the GPU
    bool resume = false;
    bool bar = false;                  // draw one, on rank 0
    std::function<bool()> should_end;  // asked before each step: end early, with a checkpoint
  };
  enum class Ending { done, early_stop, asked };

  // All ranks. `folder` has been made. Throws ConfigError for what cannot be trained.
  Trainer(Context& context, RunFolder folder, Options options);

  Ending run();

 private:
  struct Epoch {
    double loss = 0;
    uint64_t skipped = 0;  // steps in which a value was not finite
    bool ended_early = false;
  };
  struct Sums;  // of a rank's steps in an epoch

  void resume();
  Epoch train_epoch();
  void make_step(Sums& sums);
  Epoch add_up(const Sums& sums);
  void adopt_newest_optimizer();
  Evaluation validate();
  bool save(double accuracy);
  bool anybody(bool mine);
  data::Ledger of_all_ranks(const data::Ledger& mine);
  void report(const Epoch& trained, const Evaluation& evaluation, double seconds);

  tensors::NamedTensors model_tensors() const;
  tensors::NamedTensors optimizer_tensors() const;
  tensors::NamedTensors left_over();
  void load_left_over(const checkpoint::SafetensorsFile& file);

  Context& context_;
  RunFolder folder_;
  const Settings settings_;
  const Options options_;
  const at::Device device_;
  std::shared_ptr<const data::EventSet> train_events_;
  std::shared_ptr<const data::EventSet> held_out_;
  std::unique_ptr<data::Loader> train_loader_;
  std::unique_ptr<data::Loader> held_out_loader_;
  std::unique_ptr<DataParallel<std::shared_ptr<Network>>> model_;
  std::unique_ptr<Adam> adam_;
  std::unique_ptr<Progress> progress_;

  // What a checkpoint keeps beside the tensors.
  uint64_t epoch_ = 0;       // that is under way, from 0
  uint64_t step_ = 0;        // optimizer steps of the run
  data::Ledger done_;        // samples of this epoch, of all ranks
  double best_ = -1;         // non-zero accuracy
  uint64_t best_epoch_ = 0;  // from 0
  double best_saved_ = -1;   // of the checkpoint that is called the best; on rank 0
};

}  // namespace ddip::models::unet
