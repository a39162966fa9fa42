// Tells a worker that the kernel killed because memory ran out from one that somebody killed: both end by SIGKILL. The
// kernel counts its kills in the memory cgroup of the process, and for the whole machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ddip::agent {

class MemoryWatch {
 public:
  // `root`: below it lie proc and sys/fs/cgroup.
  explicit MemoryWatch(std::filesystem::path root = "/") : root_(std::move(root)) {}

  // Takes note of where the process is accounted for and how many were killed there so far. A process that is gone
  // changes nothing: its files say no more where it was.
  void look(pid_t pid);

  // In words, with the limit, if the kernel has killed somebody there since the last look; otherwise empty. REQUIRES:
  // the process ended by SIGKILL that is not ours.
  std::string why_killed() const;

 private:
  // The folder of its memory cgroup; of version 2 (memory.events) or 1 (memory.oom_control).
  std::filesystem::path folder_of(pid_t pid) const;
  std::optional<uint64_t> kills_in(const std::filesystem::path& folder) const;
  std::optional<uint64_t> kills_on_host() const;
  std::optional<uint64_t> limit_of(std::filesystem::path folder) const;

  std::filesystem::path root_;
  std::filesystem::path folder_;
  std::optional<uint64_t> kills_here_;
  std::optional<uint64_t> kills_on_host_;
};

}  // namespace ddip::agent
