// Writes the ledger of a pipeline of C++ (docs/ledger.md): what each rank's stages really did, gathered after every
// run. The hashes are taken where the optimizer steps, not where the plan says it should.
#pragma once

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "ddip/pipeline/part.h"
#include "ddip/pipeline/record.h"
#include "ddip/pipeline/settings.h"
#include "ddip/tensors/communicator.h"

namespace ddip::pipeline {

class LedgerWriter {
 public:
  // All ranks. Rank 0 writes; the file is whole after each run. `settings` outlive this.
  LedgerWriter(const Settings& settings, const std::vector<Part>& parts, std::shared_ptr<tensors::Communicator> ranks);

  // Before the first run, for each of this rank's stages that train. They outlive this. Throws ConfigError for an
  // optimizer that no replay knows.
  void watch(int stage, const Part& part, const Weights& weights, Stepping& stepping);
  // For each of them that has nothing to train.
  void watch(int stage, const Part& part);

  // All ranks, when every stage is watched: a file that cannot be written is found before anything runs, and one of an
  // earlier pipeline does not outlive it. Throws ConfigError, on all of them.
  void begin();
  // Before a run.
  void run_begins();
  // All ranks, after a run whose micro-batches are counted from `first`. Before what the ledger ends, if it cannot have
  // this run; nothing: it goes on.
  std::string add(const Record& record, int64_t first);
  // A run has failed: what it did is not known, so that nothing after it could be replayed. The file ends before it.
  void end();
  bool ended() const { return ended_; }

 private:
  using Json = nlohmann::json;
  struct Watched {
    // Null: nothing to train.
    const Part* part = nullptr;
    const Weights* weights = nullptr;
    Stepping* stepping = nullptr;
    std::string initial, newest;  // hashes of weights
    std::string gradient;         // of the step that is being done
    std::deque<Json> steps;       // noted by the optimizer itself
    int64_t forwards = 0, versions = 0, staleness = 0;
    std::set<int64_t> empty;  // micro-batches of the run that have no samples
  };

  // Of each stage here, a line that says that a run begins.
  std::vector<Json> begins(const Record& record, int64_t first) const;
  Json line_of(const Done& done, int64_t first, const std::map<int64_t, double>& losses);  // null: none
  Json line_of_step(Watched& stage, int index, const Versions::Stepped& stepped, int64_t first) const;
  Json seen(Watched& stage, int index, const Used& used, int64_t first) const;
  Json seen_back(Watched& stage, int index, const ReadBack& read) const;
  int distance(int stage, bool backward) const;
  bool has(const char* policy) const { return settings_.has_policy(policy); }
  Json about(const Watched& stage) const;
  // What the header says of all runs.
  Json told() const;
  // All ranks. `lines` are this rank's; those of all of them are in the file then. Why not, if they are not.
  std::string publish(const Json& lines, int64_t micro_batches);
  void write(const std::map<int, Json>& about, int64_t micro_batches) const;

  const Settings& settings_;
  const std::vector<Part>& parts_;
  const std::shared_ptr<tensors::Communicator> ranks_;
  std::map<int, Watched> stages_;
  std::vector<std::string> lines_;  // of all ranks, on rank 0
  Json told_;                       // of the first run
  bool ended_ = false;
};

}  // namespace ddip::pipeline
