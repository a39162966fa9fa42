// What a group's journal says of its end, when nobody is left to ask.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ddip::app {

struct Past {
  size_t lines = 0;     // of output, kept
  double last = 0;      // seconds since the epoch, of the newest record
  std::string stopped;  // why it stopped in an orderly way; empty: it was lost
};

// Nothing: there is no journal of a group of this name.
std::optional<Past> read_past(const std::filesystem::path& state, const std::string& name);

// "group a was lost at 2026-11-15 05:44:28, 12 lines kept (ddip log a)"
std::string describe(const Past& past, const std::string& name);

// Names of all groups with a journal.
std::vector<std::string> groups_with_journal(const std::filesystem::path& state);

}  // namespace ddip::app
