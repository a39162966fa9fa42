// What has been done, as it was done: for the timeline, the ledger and the report.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ddip/pipeline/versions.h"
#include "ddip/schedule/action.h"

namespace ddip::pipeline {

// One action, with what it really used: by the stage and its optimizer, not by the plan.
struct Done {
  schedule::Action action;
  double begin = 0, end = 0;  // seconds since the run's beginning
  double count = 0;           // forward: samples; backward: what the loss counted; step: the sum over its micro-batches
  Used used;                  // forward
  ReadBack read;              // backward
  bool split = false;         // backward: the weights' gradients come later; weight gradient: they came now
  Versions::Stepped stepped;  // step
};

struct Record {
  double start = 0;  // when the run began, in seconds of a clock that the processes of one host share
  std::vector<Done> actions;
  std::vector<std::pair<int64_t, at::Tensor>> losses;  // last stage: (micro-batch, sum)
  std::vector<double> loss_counts;                     // of each
  uint64_t bytes_sent = 0;
  std::map<int, std::string>
      whole_backwards;  // stages whose planned split was not possible, and the node that forbids it
};

}  // namespace ddip::pipeline
