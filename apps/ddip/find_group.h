// Which group a command means, and the way to it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "context.h"
#include "ddip/client/client.h"
#include "ddip/launch/flags.h"

namespace ddip::app {

// How long a coordinator may take for an answer that waits for no cell.
constexpr client::Milliseconds kAnswer{10'000};

struct KnownGroup {
  client::GroupFolder folder;
  bool running = false;
};

// All with a folder. What processes a lost one has left behind are ended here: if all of them were stopped (SIGSTOP)
// nobody else could.
std::vector<KnownGroup> known_groups(const Context& context);

// The running group of this name, or, with an empty one, the only running group. ConfigError lists the groups;
// PeerLost says when and how a group that ran before ended. `command` is "ddip info".
client::GroupFolder find_group(const Context& context, const std::string& command, const std::string& name);

// At most one word: the group's name, checked. Empty: left out.
std::string name_word(const launch::Flags& flags);

// A connection under the name `shell`.
std::unique_ptr<client::Client> connect(const client::GroupFolder& folder);

}  // namespace ddip::app
