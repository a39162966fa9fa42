// The c10d store of a `ddip run`: a Python child on a loopback listener that was bound before the ranks started.
// Ranks that knock before it is there wait in the listener's backlog.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "ddip/base/fd.h"

namespace ddip::app {

class StoreHost {
 public:
  struct Options {
    std::string python;  // empty: there is none, so there is no store
    std::map<std::string, std::string> environment;
    int port = 0;  // 0: a free one
  };

  // Binds; starts nothing. Throws ConfigError if the port is taken.
  explicit StoreHost(Options options);
  ~StoreHost();

  int port() const { return port_; }
  void start();
  // Ends the child, if there is one.
  void stop();
  // Nobody listens any more; the port is the program's.
  void release() { listener_.reset(); }

  // What a loop should watch: a knock while nobody answers, or the child's end. -1: nothing.
  int watched() const;
  // watched() is readable. Returns what to tell the user, usually nothing.
  std::string on_readable();

 private:
  Options options_;
  Fd listener_;
  int port_ = 0;
  pid_t pid_ = 0;
  Fd pidfd_;
  Fd life_;    // the child ends when this closes
  Fd errors_;  // its standard error
  std::string failure_;
};

}  // namespace ddip::app
