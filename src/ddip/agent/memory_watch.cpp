#include "ddip/agent/memory_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace ddip::agent {
namespace {

namespace fs = std::filesystem;

// The number after `name` in a file of lines "name number".
std::optional<uint64_t> number_in(const fs::path& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    uint64_t number = 0;
    if (word == name && in >> number) return number;
    in.clear();
    in.ignore(1 << 16, '\n');
  }
  return std::nullopt;
}

std::optional<uint64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  uint64_t number = 0;
  if (in >> number) return number;  // "max": there is none
  return std::nullopt;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// A process that has ended is accounted for nowhere, and its files say so.
bool is_dead(const fs::path& folder) {
  std::ifstream in(folder / "stat");
  std::string line;
  std::getline(in, line);
  size_t name = line.rfind(") ");
  return name != std::string::npos && (line[name + 2] == 'Z' || line[name + 2] == 'X');
}

std::string in_units(uint64_t bytes) {
  double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 4096 ? fmt::format("{:.0f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
}

}  // namespace

fs::path MemoryWatch::folder_of(pid_t pid) const {
  std::ifstream in(root_ / "proc" / std::to_string(pid) / "cgroup");
  const fs::path mounted = root_ / "sys/fs/cgroup";
  fs::path unified;
  for (std::string line; std::getline(in, line);) {
    // hierarchy:controllers:/path
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(std::min(line.size(), second + 2));  // without the slash: it goes below another
    if (controllers.find(",memory,") != std::string::npos) {
      // Inside a container the path may be the host's; what is mounted is then the container's own.
      fs::path folder = mounted / "memory" / path;
      return is_there(folder) ? folder : mounted / "memory";
    }
    if (controllers == ",,") unified = is_there(mounted / path) ? mounted / path : mounted;
  }
  return unified;
}

std::optional<uint64_t> MemoryWatch::kills_in(const fs::path& folder) const {
  if (folder.empty()) return std::nullopt;
  if (auto count = number_in(folder / "memory.events", "oom_kill")) return count;
  return number_in(folder / "memory.oom_control", "oom_kill");
}

std::optional<uint64_t> MemoryWatch::kills_on_host() const { return number_in(root_ / "proc/vmstat", "oom_kill"); }

// The smallest on the way up. Version 1 says "none" as a number that no machine has.
std::optional<uint64_t> MemoryWatch::limit_of(fs::path folder) const {
  std::optional<uint64_t> limit;
  for (; folder.string().size() > (root_ / "sys/fs/cgroup").string().size(); folder = folder.parent_path()) {
    for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
      auto here = number_in(folder / name);
      if (here && *here < uint64_t{1} << 60) limit = std::min(limit.value_or(*here), *here);
    }
  }
  return limit;
}

void MemoryWatch::look(pid_t pid) {
  if (is_dead(root_ / "proc" / std::to_string(pid))) return;
  fs::path folder = folder_of(pid);
  if (folder.empty()) return;
  folder_ = std::move(folder);
  kills_here_ = kills_in(folder_);
  kills_on_host_ = kills_on_host();
}

std::string MemoryWatch::why_killed() const {
  auto more = [](const std::optional<uint64_t>& before, const std::optional<uint64_t>& now) {
    return before && now && *now > *before;
  };
  const bool here = more(kills_here_, kills_in(folder_));
  if (!here && !more(kills_on_host_, kills_on_host())) return "";
  std::string where;
  if (auto limit = limit_of(folder_))
    where = fmt::format("; the limit of its cgroup is {}", in_units(*limit));
  else if (auto kib = number_in(root_ / "proc/meminfo", "MemTotal:"))
    where = fmt::format("; the machine has {}", in_units(*kib * 1024));
  return (here ? "out of memory: the kernel killed it (SIGKILL)"
               : "probably out of memory: killed by SIGKILL when the kernel killed for want of memory") +
         where;
}

}  // namespace ddip::agent
