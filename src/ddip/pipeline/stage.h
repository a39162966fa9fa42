// One stage as the executor sees it. What computes, the caller says: a module of C++ or of Python.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddip/pipeline/gaps.h"
#include "ddip/pipeline/value.h"
#include "ddip/pipeline/versions.h"

namespace ddip::pipeline {

// One micro-batch as its reader gives it.
struct Sample {
  Value value;
  int64_t count = 0;  // samples; 0: there is nothing in it
  bool begins_batch = true;
};

struct Loss {
  at::Tensor sum;    // over what it counts: a mean of means is not the mean when micro-batches differ
  double count = 0;  // samples, tokens, …
};

struct Stage {
  int index = 0;
  std::string name;                     // for people: "stage 1 (decoder)"
  std::vector<int> incoming, outgoing;  // edges, in the order of forward's arguments and results

  std::function<std::vector<Value>(const std::vector<Value>&)> forward;
  // First stages: the inputs. Also on the last stage, if it can tell: to see that both read the same samples.
  std::function<Sample(int64_t micro_batch)> input;
  std::function<Loss(const std::vector<Value>& outputs, int64_t micro_batch, int64_t samples)> loss;  // last stage
  // Losses that the last forward has added by itself: mean over the micro-batch's samples.
  std::function<std::vector<at::Tensor>()> auxiliary_losses;
  std::function<std::vector<at::Tensor>()> buffers;

  std::shared_ptr<Versions> versions;  // null: it has no parameters
  std::shared_ptr<Gaps> gaps;          // null: nobody asks how far they move
  at::Device device = at::kCPU;
  // The forward keeps no graph and runs again right before its backward.
  bool recompute = false;
  double clip = 0;  // largest norm of a step's gradient; 0: any
  // Of the whole model's norm, what this stage is expected to have: for the first steps of a late global norm.
  double clip_share = 1;
};

}  // namespace ddip::pipeline
