// Notices within milliseconds that a rank died, and lets nobody wait for it any more. A futex does not know. Also the
// way to abort from where there is only a descriptor: a worker's control thread ends blocked operations by shutting
// sockets.
#pragma once

#include <thread>
#include <vector>

#include "ddip/comm/shm/segment.h"

namespace ddip::comm::shm {

class Watch {
 public:
  // REQUIRES: all ranks have written their process number.
  Watch(const Segment& segment, int rank);
  ~Watch();

  // Shutting this socket down aborts the communicator, on all ranks.
  int abort_socket() const { return abort_theirs_.get(); }

 private:
  void run();

  const Segment& segment_;
  const int rank_;
  std::vector<Fd> peers_;  // pidfds by rank
  Fd stop_;
  Fd abort_ours_;
  Fd abort_theirs_;
  std::thread thread_;
};

}  // namespace ddip::comm::shm
