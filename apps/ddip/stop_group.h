// Ending a group: in an orderly way if its coordinator answers, by force if it does not.
#pragma once

#include <string>

#include "ddip/client/group_folder.h"

namespace ddip::app {

// Returns when every process of the group is gone, with a sentence that says how they went. `patience`: seconds for
// the orderly way.
std::string stop_group(const client::GroupFolder& folder, double patience);

// Kills whatever carries the group's marker, its coordinator among them, and removes its folder.
void kill_group(const client::GroupFolder& folder);

}  // namespace ddip::app
