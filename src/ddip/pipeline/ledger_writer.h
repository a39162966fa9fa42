// Writes the ledger of a pipeline of C++ (docs/ledger.md): what each rank's stages really did, gathered after every
// run. The hashes are taken where the optimizer steps, not where the plan says it should.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "ddip/pipeline/part.h"
#include "ddip/pipeline/record.h"
#include "ddip/pipeline/stepping.h"
#include "ddip/tensors/communicator.h"

namespace ddip::pipeline {

// What a ledger says of the whole run, and lines depend on.
struct LedgerFacts {
  std::string schedule, staleness, precision;
  int stages = 1;
  int micro_batches = 1;  // of a batch
  int accumulate = 1;
  bool synchronous = false;
  double clip = 0;
  uint64_t seed = 0;
  std::string program;  // empty: none
};

class LedgerWriter {
 public:
  // All ranks. Rank 0 writes; the file is whole after each run. Throws ConfigError if there can be no ledger.
  LedgerWriter(std::filesystem::path path, LedgerFacts facts, std::shared_ptr<tensors::Communicator> ranks);

  // Before the first run, for each of this rank's stages that train. `part` and `stepping` outlive this.
  void watch(int stage, const Part& part, const Weights& weights, Stepping& stepping, bool recomputes);

  // All ranks, after a run whose micro-batches are counted from `first`.
  void add(const Record& record, int64_t first);

 private:
  using Json = nlohmann::json;
  struct Watched {
    const Part* part = nullptr;
    const Weights* weights = nullptr;
    Stepping* stepping = nullptr;
    bool recomputes = false;
    std::string initial;
    std::string gradient;    // of the step that is being done
    std::deque<Json> steps;  // noted by the optimizer itself
    int64_t forwards = 0, versions = 0, staleness = 0;
  };

  Json line_of(const Done& done, int64_t first, const std::map<int64_t, double>& losses);  // null: none
  Json seen(Watched& stage, int index, const Used& used, int64_t first) const;
  Json seen_back(Watched& stage, int index, const ReadBack& read) const;
  int distance(int stage, bool backward) const;
  bool has(const char* policy) const { return facts_.staleness.find(policy) != std::string::npos; }
  Json about(const Watched& stage) const;
  void write(const std::map<int, Json>& about, int64_t micro_batches) const;

  const std::filesystem::path path_;
  const LedgerFacts facts_;
  const std::shared_ptr<tensors::Communicator> ranks_;
  std::map<int, Watched> stages_;
  std::vector<std::string> lines_;  // of all ranks, on rank 0
};

}  // namespace ddip::pipeline
