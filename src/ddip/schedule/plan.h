// A schedule is data: what every rank does, in its order. Pure: the same request gives the same plan on every rank.
#pragma once

#include <string>
#include <vector>

#include "ddip/schedule/action.h"
#include "ddip/schedule/request.h"

namespace ddip::schedule {

struct Plan {
  Request request;  // completed: nothing in it is left out
  std::vector<std::vector<Action>> ranks;
  std::vector<int> capacity;       // by channel: frames that may lie between SEND and RECV; 0: they meet
  std::vector<int> activations;    // by stage: micro-batches that may be alive at once; empty: any number
  std::vector<int> versions;       // by stage: versions of the weights that may be; empty: any number
  std::vector<std::string> notes;  // what was asked for and is not so, for people
};

// Throws ConfigError, one line, for what cannot be.
Plan make_plan(const Request& request);

}  // namespace ddip::schedule
