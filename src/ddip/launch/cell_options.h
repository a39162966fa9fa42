// What a %%dip line was asked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddip/launch/flags.h"

namespace ddip::launch {

enum class Place { Remote, Local, Everywhere };

struct CellOptions {
  Place place = Place::Remote;
  std::string ranks = "all";  // as written; parse_rank_list() once the group's size is known
  std::string see = "all";    // whose output is shown; all: common lines once, differences by rank
  bool quiet = false;
  bool plain = false;  // every line with its rank, nothing merged
  bool verbose = false;
  bool async = false;
  std::string async_name;          // --async NAME: the variable that gets the cell; empty: none
  std::string out;                 // --out NAME: the variable that gets the results; empty: none
  std::string app_command;         // --appcmd F: which the app of the group knows, or not; empty: none
  std::vector<std::string> check;  // --check NAMES: variables that should be equal on all ranks
};

// ConfigError (one line) or HelpRequested, nothing else. `remote`, `local` and `everywhere` are always the place,
// also straight after --async, and never a variable's name.
CellOptions parse_cell_flags(const std::vector<std::string>& args, const std::string& command = "%%dip");

std::string cell_help(const std::string& command = "%%dip");

}  // namespace ddip::launch
