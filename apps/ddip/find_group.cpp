#include "find_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>

#include <fstream>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"
#include "ddip/base/process_scan.h"
#include "past.h"

namespace ddip::app {
namespace fs = std::filesystem;

namespace {

// Under the group's own lock, so that a coordinator that starts at this moment is not mistaken for the lost one.
void sweep_lost(const client::GroupFolder& folder) {
  std::error_code error;
  if (!fs::exists(folder.marker(), error)) return;
  Fd lock(::open(folder.lock().c_str(), O_RDWR | O_CLOEXEC));
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  std::ifstream file(folder.marker());
  std::string marker;
  if (std::getline(file, marker) && !marker.empty()) sweep_processes_with("DDIP_GROUP", marker, {});
  for (const fs::path& path : {folder.marker(), folder.socket(), folder.key()}) fs::remove(path, error);
}

}  // namespace

std::vector<KnownGroup> known_groups(const Context& context) {
  std::vector<KnownGroup> groups;
  for (const client::GroupFolder& folder : client::all_groups(context.runtime)) {
    const bool running = client::is_running(folder);
    if (!running) sweep_lost(folder);
    groups.push_back({folder, running});
  }
  return groups;
}

client::GroupFolder find_group(const Context& context, const std::string& command, const std::string& name) {
  std::vector<client::GroupFolder> running;
  std::vector<std::string> names;
  for (const KnownGroup& group : known_groups(context)) {
    if (!group.running) continue;
    if (group.folder.name() == name) return group.folder;
    running.push_back(group.folder);
    names.push_back(group.folder.name());
  }
  if (name.empty()) {
    if (running.size() == 1) return running.front();
    if (running.empty()) throw ConfigError(command + ": no group is running; ddip up starts one");
    throw ConfigError(fmt::format("{}: {} groups are running ({}); expected one's name: {} NAME", command, names.size(),
                                  fmt::join(names, ", "), command));
  }
  if (auto past = read_past(context.state, name))
    throw PeerLost(fmt::format("{} {}: {}", command, name, describe(*past, name)));
  std::string near = did_you_mean(name, names);
  if (names.empty())
    throw ConfigError(
        fmt::format("{} {}: no such group, and none is running; ddip up {} starts it", command, name, name));
  throw ConfigError(fmt::format("{} {}: no such group{} running: {}", command, name, near.empty() ? ";" : near,
                                fmt::join(names, ", ")));
}

std::string name_word(const launch::Flags& flags) {
  std::string name;
  for (const std::string& word : flags.words()) {
    const launch::FlagText place{flags.command() + " " + launch::shown(word), word};
    if (!name.empty()) launch::refuse(place, "expected one group's name, and " + name + " is given already");
    name = launch::group_name(place);
  }
  return name;
}

std::unique_ptr<client::Client> connect(const client::GroupFolder& folder) {
  return std::make_unique<client::Client>(folder, "shell");
}

}  // namespace ddip::app
