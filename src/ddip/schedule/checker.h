// Is this plan right? Decided before any process starts, for these lists and these channel capacities, whoever wrote
// them: nothing that a generator promised is believed.
#pragma once

#include <string>
#include <vector>

#include "ddip/schedule/plan.h"

namespace ddip::schedule {

struct Verdict {
  // One line: rank, place in its list (from 0), action, and what is wrong. Empty: every SEND meets its RECV in order,
  // nothing waits in a circle, every micro-batch passes every stage exactly once, steps and versions are as the request
  // says, and all counts stay inside the plan's bounds.
  std::string error;
  bool deadlock_free = false;
  // At full speed (the request's costs) no SEND waits for room. Another question than whether the plan is right.
  bool stall_free = false;

  // Known only if there is no error. By channel:
  std::vector<int> frames;       // under way at once at full speed
  std::vector<int> frames_ever;  // whatever the timing
  // By stage:
  std::vector<int> activations;
  std::vector<int> versions;
  std::vector<int> staleness;

  bool ok() const { return error.empty(); }
};

Verdict check(const Plan& plan);

// Throws ConfigError with the error, if there is one.
void require_right(const Plan& plan);

}  // namespace ddip::schedule
