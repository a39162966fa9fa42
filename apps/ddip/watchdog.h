// Ends everything that carries a marker once this process is gone, however it went: a SIGKILL leaves nobody else to do
// it, and a parent-death signal would reach the ranks but not their children.
#pragma once

#include <sys/types.h>

#include <string>

#include "ddip/base/fd.h"

namespace ddip::app {

class Watchdog {
 public:
  // Forks. REQUIRES: this process has one thread.
  Watchdog(const std::string& name, const std::string& marker);
  // All is over and swept: the watchdog may go.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  Fd line_;  // the watchdog reads the other end
  pid_t pid_ = 0;
};

}  // namespace ddip::app
