// A pipeline on disk: a folder of checkpoints (checkpoint/store.h) that all ranks see. Each rank writes one file with
// what its own stages carry (stage_state.h), rank 0 then the manifest that makes them one. A run that goes on from it
// is a run that drained there.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "ddip/pipeline/executor.h"
#include "ddip/pipeline/settings.h"
#include "ddip/pipeline/stage_state.h"

namespace ddip::pipeline {

// One rank's part of it.
struct RankOnDisk {
  tensors::Communicator& ranks;
  const Settings& settings;
  Executor& executor;
  std::vector<StageOnDisk> stages;
  nlohmann::json layers;  // of all stages (saved_cut.h)
};

// What earlier runs have trained on: random numbers follow micro-batches, phases follow batches, and a later run may
// cut these into other parts.
struct DoneBefore {
  int64_t micro_batches = 0, batches = 0;
};

// All ranks together, both. A ConfigError is thrown on all of them: then what was saved before is still there, or the
// pipeline is as it was.
void save(const RankOnDisk& rank, const DoneBefore& done, const std::filesystem::path& folder);
DoneBefore load(const RankOnDisk& rank, const std::filesystem::path& folder);

}  // namespace ddip::pipeline
