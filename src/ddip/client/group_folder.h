// Where a group lives on disk, and which groups this user has.
//
//   /tmp/ddip-UID/NAME/        0700
//     socket                   the coordinator's door
//     key                      32 random bytes, 0600, gone with the group
//     lock                     held (flock) by the coordinator as long as it lives
//     marker                   value of DDIP_GROUP in every process of the group
//     coordinator.log
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ddip::client {

struct GroupFolder {
  std::filesystem::path path;

  std::string name() const { return path.filename().string(); }
  std::filesystem::path socket() const { return path / "socket"; }
  std::filesystem::path key() const { return path / "key"; }
  std::filesystem::path lock() const { return path / "lock"; }
  std::filesystem::path marker() const { return path / "marker"; }
  std::filesystem::path log() const { return path / "coordinator.log"; }
};

// `runtime` as net::runtime_folder() gives it; the name must have been checked.
GroupFolder group_folder(const std::filesystem::path& runtime, const std::string& name);

// A coordinator holds its lock.
bool is_running(const GroupFolder& folder);

// All with a folder, running or dead, by name.
std::vector<GroupFolder> all_groups(const std::filesystem::path& runtime);

// The running one of this name. Throws ConfigError that lists the running groups and the nearest name.
GroupFolder require_group(const std::filesystem::path& runtime, const std::string& name);

// Where journals are kept: $XDG_STATE_HOME/ddip, default ~/.local/state/ddip. Both values as the caller read them.
std::filesystem::path state_folder(const std::string& xdg_state_home, const std::string& home);

// The newest journal of a group of this name, running or not; empty if there is none.
std::filesystem::path newest_journal(const std::filesystem::path& state, const std::string& name);

}  // namespace ddip::client
