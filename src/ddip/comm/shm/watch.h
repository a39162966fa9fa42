// Notices within milliseconds that a rank died, and lets nobody wait for it any more. A futex does not know.
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

 private:
  void run();

  const Segment& segment_;
  const int rank_;
  std::vector<Fd> peers_;  // pidfds by rank
  Fd stop_;
  std::thread thread_;
};

}  // namespace ddip::comm::shm
