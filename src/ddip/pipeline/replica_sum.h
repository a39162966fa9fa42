// The sum of a stage's gradients over its replicas, around a ring of messages: each piece is summed in the ring's order
// and then handed round, so that all replicas have the same bits. Messages and not a collective, because a rank that
// waits for one can still be interrupted, and can go on after another has failed.
#pragma once

#include "ddip/pipeline/channel.h"

namespace ddip::pipeline {

struct Ring {
  Sender* next = nullptr;
  Receiver* previous = nullptr;
  int place = 0, members = 1;

  // Messages that arrive in one sum.
  int64_t messages() const { return 3 * (members - 1); }
};

// What a step is made of.
struct Counts {
  double count = 0;           // samples, or what the loss was a sum over
  int64_t micro_batches = 0;  // of replicas: the most, because theirs are parts of the same ones
  double loss_scale = 1;      // that the gradients have; of replicas: the same
  std::vector<bool> reached;  // parameters that a gradient has come to; of replicas: in any of them
};

// All replicas together. Changes `gradient`; gives the counts of all of them. Throws ConfigError if they have scaled
// their losses by different numbers.
Counts sum_over_replicas(const Ring& ring, const at::Tensor& gradient, const Counts& mine, const Poll& poll);

}  // namespace ddip::pipeline
