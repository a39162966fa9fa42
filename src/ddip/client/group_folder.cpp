#include "ddip/client/group_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>

#include <algorithm>

#include "ddip/base/error.h"
#include "ddip/base/fd.h"
#include "ddip/net/local_socket.h"

namespace ddip::client {

namespace fs = std::filesystem;

GroupFolder group_folder(const fs::path& runtime, const std::string& name) { return {runtime / name}; }

bool is_running(const GroupFolder& folder) {
  Fd lock(::open(folder.lock().c_str(), O_RDWR | O_CLOEXEC));
  return lock && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0;
}

std::vector<GroupFolder> all_groups(const fs::path& runtime) {
  std::vector<GroupFolder> groups;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(runtime, error)) {
    if (entry.is_directory(error) && fs::exists(entry.path() / "lock", error)) groups.push_back({entry.path()});
  }
  std::sort(groups.begin(), groups.end(), [](const GroupFolder& a, const GroupFolder& b) { return a.path < b.path; });
  return groups;
}

GroupFolder require_group(const fs::path& runtime, const std::string& name) {
  std::vector<std::string> running;
  std::error_code ignored;
  // Somebody else's folder in our place is not walked into: whoever answers there is not our coordinator.
  if (fs::exists(runtime, ignored)) net::check_private_folder(runtime);
  for (const GroupFolder& group : all_groups(runtime)) {
    if (!is_running(group)) continue;
    if (group.name() == name) {
      net::check_private_folder(group.path);
      return group;
    }
    running.push_back(group.name());
  }
  if (running.empty())
    throw ConfigError(fmt::format("no group named {}: no group is running; `ddip up` or %makedip starts one", name));
  throw ConfigError(fmt::format("no group named {}; running: {}", name, fmt::join(running, ", ")));
}

fs::path state_folder(const std::string& xdg_state_home, const std::string& home) {
  return (xdg_state_home.empty() ? fs::path(home) / ".local" / "state" : fs::path(xdg_state_home)) / "ddip";
}

fs::path newest_journal(const fs::path& state, const std::string& name) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(state / name, error)) found.push_back(entry.path());
  return found.empty() ? fs::path() : *std::max_element(found.begin(), found.end());
}

}  // namespace ddip::client
