// How a rank that has failed tells its neighbours, whatever they are doing: beside the channels, which may be full. A
// receive for each neighbour's alarm is always posted.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ddip/pipeline/completion.h"

namespace ddip::pipeline {

class Alarms {
 public:
  // `neighbours`: ranks, each once; they have us among theirs. `tag`: the same on all ranks.
  Alarms(std::shared_ptr<tensors::Communicator> ranks, const std::vector<int>& neighbours, int tag);

  // Throws StageFailed if a neighbour has raised its alarm, PeerLost if it is gone.
  void check();
  // Once in a run that fails, on every rank.
  void raise(const std::string& why);
  // After every rank has raised its own: takes the neighbours', and is ready for the next time.
  void settle(const Poll& poll);

 private:
  struct Posted {
    Completion completion;
    at::Tensor text;
  };
  void post(int neighbour);

  const std::shared_ptr<tensors::Communicator> ranks_;
  const int tag_;
  Completions sends_;
  std::map<int, Completions> receives_;          // by neighbour: one that never comes must not hide another's
  std::map<int, std::optional<Posted>> posted_;  // likewise
  std::vector<Posted> raised_;                   // ours, until they have left
};

}  // namespace ddip::pipeline
