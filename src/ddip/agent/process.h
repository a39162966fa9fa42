// Starting processes.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "ddip/base/ending.h"
#include "ddip/base/fd.h"

namespace ddip::agent {

using Environment = std::map<std::string, std::string>;

struct Command {
  std::vector<std::string> argv;
  Environment environment;
  std::string folder;            // working directory; empty: ours
  std::vector<int> descriptors;  // become 3, 4, … in the child
  int output = -1;               // becomes 1; -1: ours
  int error = -1;                // becomes 2; -1: ours
};

// Forks and execs, in a process group of its own; 0 is /dev/null, every other descriptor is closed in the child. Throws
// ConfigError if the program cannot be executed or its folder not be entered. Call it only from a process with one
// thread.
pid_t start(const Command& command);

}  // namespace ddip::agent
