// Runs the lists in thought: what happens when, with these capacities and costs, or where it gets stuck. Each rank's
// list is fixed and so is the order of every channel; hence one run decides for all: no timing, however unlucky, gets
// stuck where this one does not.
#pragma once

#include <vector>

#include "ddip/schedule/plan.h"

namespace ddip::schedule {

struct Span {
  double begin = 0;  // when the action was free to go on: waiting lies before it
  double end = 0;
};

struct Run {
  std::vector<std::vector<Span>> ranks;  // by rank and action, as far as they came
  std::vector<int> most_frames;          // by channel: sent and not yet received at once
  bool finished = false;
};

// REQUIRES: well-formed actions (stages and edges that exist). `capacity` empty: as much room as anybody wants, and
// nobody waits for a RETIRE.
Run run(const Plan& plan, const Costs& costs, const std::vector<int>& capacity);

double cost_of(const Action& action, const Costs& costs, bool split);

}  // namespace ddip::schedule
