// What somebody asks of a schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddip/schedule/costs.h"

namespace ddip::schedule {

// The output of one stage is an input of a later one; a skip connection is one that leaves stages out.
struct Edge {
  int from = 0;
  int to = 0;

  friend bool operator==(const Edge&, const Edge&) = default;
};

// What a staleness policy needs of a plan.
struct Needs {
  bool predicts = false;  // a PREDICT before each forward that will be stale
  bool stashes = false;   // a STASH for each forward that will be stale
  // Weights of its own for each forward, stale or not: a PREDICT and a STASH before each.
  bool perturbs = false;

  friend bool operator==(const Needs&, const Needs&) = default;
};

struct Request {
  std::string schedule = "1f1b";
  int stages = 1;
  std::vector<int> rank_of_stage;  // empty: a rank for each stage
  std::vector<Edge> edges;         // empty: a chain
  int micro_batches = 1;           // of a batch
  int64_t batches = 1;
  int last_batch = 0;  // micro-batches of the last batch, if it has fewer
  // Synchronous schedules step after so many batches, asynchronous ones after so many micro-batches.
  int accumulate = 1;
  // By stage: how many micro-batches more than its backwards it may have begun before it begins another one.
  // Empty: the textbook's, the longest way to the last stage.
  std::vector<int> window;
  int max_staleness = -1;  // of virtual_async only

  // Of asynchronous schedules, in batches.
  int64_t warmup = 0;       // so many synchronous ones first
  int64_t flush_every = 0;  // a drain after each so many; synchronous schedules have it too. 0: none
  int64_t switch_at = -1;   // synchronous from this one on. -1: never

  // plan: the order of each rank is in its list. ready: a rank does what has come first (ready.h); its list is what it
  // would do if nothing ever came late.
  std::string order = "plan";

  Needs needs;
  std::vector<int> capacity;  // by channel (channel_of); empty: what full speed needs, and one more
  Costs costs;

  int ranks() const;
  int64_t total() const;         // micro-batches of the run
  bool crosses(int edge) const;  // its stages are on different ranks
  double message_time(int edge) const { return crosses(edge) ? costs.link(edge) : 0; }
};

// One channel for each edge and direction.
inline size_t channel_of(int edge, bool gradient) { return static_cast<size_t>(edge) * 2 + (gradient ? 1 : 0); }

const std::vector<std::string>& schedule_names();
bool is_synchronous(const std::string& schedule);     // all micro-batches of a step see the same weights
bool splits_backward(const std::string& schedule);    // zb1, zbv
bool reads_one_step_behind(const std::string& name);  // 2bw

// Each stage to the next.
std::vector<Edge> chain_of(int stages);

// The request with everything that was left out filled in. Throws ConfigError: one line.
Request completed(Request request);

// By stage: edges on the longest way to the last stage.
std::vector<int> depths(const Request& completed);

}  // namespace ddip::schedule
