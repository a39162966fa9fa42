// What %makedip and `ddip up` were asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddip/launch/flags.h"

namespace ddip::launch {

// A worker is a process: beyond this, one machine runs out of memory, descriptors and process ids first.
inline constexpr int kMaxWorkers = 4096;

enum class Action {
  Start,    // or attach, if a group of this name and shape runs
  Attach,   // --attach NAME: join it as it is
  Restart,  // -r
  Kill,     // -k
  Info,     // -i
  Rebuild,  // --rebuild
};

enum class StartMethod { Fork, Exec };
enum class OnExit { Keep, Stop };

struct GroupOptions {
  Action action = Action::Start;
  std::string name;  // --name or --attach; empty: the caller's default (group_name.h)
  bool verbose = false;
  std::string ranks;  // --ranks beside -r, as written; empty: all

  // Shape.
  std::optional<std::string> gpus;  // as written: "3,1" or "all"; choose_gpus() knows which are there
  std::string gpus_where = "-g";    // "%makedip -g": where that was written
  std::optional<int> workers;
  std::optional<int> threads;
  std::string backend = "auto";  // auto, shm, nccl or gloo

  std::string app;  // of apps.h, or "none"; empty: not said

  // Lifetime.
  Seconds timeout{60};
  Seconds settle{10};
  std::optional<Seconds> grace;  // unset: an interrupt never kills by time
  Seconds idle{12 * 3600};       // 0: never ends by itself
  OnExit on_exit = OnExit::Keep;
  std::string client;  // empty: the caller's default

  // Workers.
  StartMethod start = StartMethod::Fork;
  std::vector<std::pair<std::string, std::string>> env;  // in the order given, each name once
  std::string python;                                    // empty: the caller's own
  std::optional<std::uint64_t> seed;
  std::optional<std::uint16_t> master_port;
  bool gc = true;  // collect garbage between cells
};

// `command` is "%makedip" or "ddip up": messages and help speak with its name. Commands of the shell (those that
// begin with "ddip ") take the group's name as a plain word too. Touches no file, device or environment variable.
// Throws ConfigError (one line: what, where, expected, nearest) or HelpRequested, nothing else.
GroupOptions parse_group_flags(const std::vector<std::string>& args, const std::string& command);

// The same table as text, and as names for completion.
std::string group_help(const std::string& command);
std::vector<std::string> group_flag_names();

}  // namespace ddip::launch
