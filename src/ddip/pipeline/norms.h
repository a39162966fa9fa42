// The norm of all stages' gradients together, for clipping and for the loss's scale. Each rank tells every other of its
// replica the square of what its stages have, step by step. A synchronous step waits for that of the same step; an
// asynchronous one uses that of some steps before, which has come meanwhile.
#pragma once

#include <map>
#include <optional>

#include "ddip/pipeline/channel.h"

namespace ddip::pipeline {

class Norms {
 public:
  struct Peer {
    int rank = 0;  // in the replica
    Sender* to = nullptr;
    Receiver* from = nullptr;
  };
  // `stages`: of this rank, that tell. `delay`: steps.
  Norms(int rank, std::vector<Peer> peers, int stages, int delay);

  int delay() const { return delay_; }
  // A new run, whose steps are counted from 0; those of earlier runs are before it.
  void begin();
  // The square of one stage's gradient in its step. True: those of all stages here are known now, and have been told.
  bool tell(int64_t step, double square, const Poll& poll);
  // The norm of step − delay; nothing if there was no such step. Waits.
  std::optional<double> ask(int64_t step, const Poll& poll);
  // Takes what is still under way at the end of a run.
  void settle(const Poll& poll);

  // Between runs, for who saves them: those that later steps will ask for, as the next run counts them.
  std::map<int64_t, double> squares() const;
  void restore(std::map<int64_t, double> squares);
  void reset();

 private:
  struct Sum {
    double square = 0;
    int stages = 0;
  };
  void take(int64_t step, const Poll& poll);

  const int rank_;
  const std::vector<Peer> peers_;  // in the order of their ranks
  const int stages_;
  const int delay_;
  int64_t steps_ = 0;  // of this run, on all stages here
  std::map<int64_t, Sum> mine_;
  std::map<int64_t, double> told_;    // of this rank, complete, until everybody's is there
  std::map<int64_t, double> totals_;  // of all ranks
};

}  // namespace ddip::pipeline
