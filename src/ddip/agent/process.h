// Starting, watching and sweeping processes of one host.
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

// Live processes whose environment carries NAME=VALUE, ourselves excluded.
std::vector<pid_t> processes_with(const std::string& name, const std::string& value);

// Its children, their children, …: everything below it now, whatever its environment, session or group.
std::vector<pid_t> descendants_of(pid_t pid);

// Value of a variable in a process's environment as it was exec'd; empty if there is none.
std::string variable_of(pid_t pid, const std::string& name);

// SIGKILLs all of them, again and again until a scan finds none or the rounds are spent. Returns how many were left.
size_t sweep(const std::string& name, const std::string& value, const std::vector<pid_t>& spare);

}  // namespace ddip::agent
