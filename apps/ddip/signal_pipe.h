// Signals as bytes in a pipe, so that a loop can wait for them among other things.
#pragma once

#include <initializer_list>
#include <vector>

#include "ddip/base/fd.h"

namespace ddip::app {

class SignalPipe {
 public:
  // From now on these signals only arrive here. One object per process.
  explicit SignalPipe(std::initializer_list<int> signals);

  int readable() const { return read_end_.get(); }
  std::vector<int> take();

 private:
  Fd read_end_;
  Fd write_end_;
};

}  // namespace ddip::app
