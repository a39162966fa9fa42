// All that a stage carries from one run to the next, as tensors with names, and back: between two runs nothing is under
// way, no gradient is left and no older weights are kept.
#pragma once

#include "ddip/pipeline/part.h"
#include "ddip/pipeline/saved_tensors.h"
#include "ddip/pipeline/stepping.h"

namespace ddip::pipeline {

struct StageOnDisk {
  int index = 0;
  const Part* part = nullptr;
  // Null, both: it has nothing to train.
  Versions* versions = nullptr;
  Stepping* stepping = nullptr;

  std::string prefix() const { return std::to_string(index) + "."; }
};

// "0.model.weight", "0.steps", "0.optimizer.state.0.exp_avg", "0.policy.change", …: the stage's own memory.
NamedTensors stage_state(const StageOnDisk& stage);

// Takes them. `policy`: a new one of the stage's kind, to try the saved one's state on. Throws ConfigError if they are
// another stage's; this one changes only when what this returns is called, once.
std::function<void()> restored_stage(SavedTensors& saved, const StageOnDisk& stage, staleness::Policy& policy);

}  // namespace ddip::pipeline
