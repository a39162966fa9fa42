// What a run of a pipeline did, told to people: losses, times of each stage, the trace.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ddip/pipeline/gaps.h"
#include "ddip/pipeline/record.h"

namespace ddip::pipeline {

// Seconds of one stage's rank, by what they went into.
struct StageTimes {
  int stage = 0;
  int rank = 0;
  double forward = 0;
  double backward = 0;
  double update = 0;
  double communication = 0;  // handing messages over
  double wait = 0;           // for messages
  double total = 0;
  double bubble = 0;                 // the share of the run in which the rank computed nothing
  std::map<int, int64_t> staleness;  // n -> forwards
  uint64_t bytes_sent = 0;
  int64_t copies_kept = 0;           // of its weights, beside the two, when the run ended
  std::optional<Gaps::Means> gap;    // PipelineOptions::gaps
  int64_t left_out = 0;              // steps whose gradients were too large for half precision
  std::optional<double> loss_scale;  // in half precision, of the last stage: after the run

  double utilisation() const { return 1 - bubble; }
};

StageTimes times_of(const Record& record, int stage, int rank, int64_t copies_kept);

// One action of one rank.
struct TraceRow {
  int rank = 0;
  schedule::Action action;
  double begin = 0, end = 0;  // seconds since the first rank of this machine began
};

struct Report {
  std::vector<double> losses;           // the mean of each batch; NaN if it counted nothing
  double loss = 0;                      // the mean over all that was counted
  std::optional<size_t> not_finite_in;  // the first batch that counted something and whose loss is no finite number
  bool training = true;                 // otherwise an evaluation
  std::vector<StageTimes> stages;       // by stage
  double seconds = 0;
  std::vector<TraceRow> trace;            // by rank
  std::map<std::string, double> metrics;  // of an evaluation: means over all that was counted

  // The share of all ranks' time in which nothing was computed.
  double bubble() const;
  double utilisation() const { return 1 - bubble(); }
  // A table for people.
  std::string text() const;
  // For chrome://tracing and ui.perfetto.dev: a process for each rank, a thread for each of its stages.
  void save_trace(const std::filesystem::path& path) const;
  // An SVG of what every rank did: a row for each stage, a box for each action. `until`: seconds; 0: as far as anything
  // can be told apart.
  std::string timeline(double until = 0) const;
  void save_timeline(const std::filesystem::path& path, double until = 0) const;
};

std::ostream& operator<<(std::ostream& out, const Report& report);

// One rank's share of it, as it travels; and all ranks' shares as one.
nlohmann::json share_of(const Record& record, const std::vector<StageTimes>& stages, int rank);
Report joined(const std::vector<nlohmann::json>& shares, int64_t batches, int micro_batches);

}  // namespace ddip::pipeline
