// Which processes of this host belong to whom, by their environment or their parents; and their end.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ddip {

// Live processes whose environment carries NAME=VALUE, ourselves excluded.
std::vector<pid_t> processes_with(const std::string& name, const std::string& value);

// Its children, their children, …: everything below it now, whatever its environment, session or group.
std::vector<pid_t> descendants_of(pid_t pid);

// Value of a variable in a process's environment as it was exec'd; empty if there is none.
std::string variable_of(pid_t pid, const std::string& name);

// SIGKILLs all of them, again and again until a scan finds none or the rounds are spent. Returns how many were left.
size_t sweep_processes_with(const std::string& name, const std::string& value, const std::vector<pid_t>& spare);

}  // namespace ddip
