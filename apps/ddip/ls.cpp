#include <fmt/format.h>

#include <chrono>

#include "command.h"
#include "ddip/base/error.h"
#include "find_group.h"
#include "past.h"
#include "tables.h"

namespace ddip::app {

using wire::json;

launch::FlagTable ls_flags() {
  return {
      "ddip ls",
      "the groups of this user",
      "[--json | --names]",
      {{"form", {kJsonFlag, {"--names", "", launch::Takes::Nothing, "", "names of running groups only, one a line"}}}},
      {"ddip ls", "ddip ls --json | jq -r '.[].name'"}};
}

namespace {

json describe_running(const client::GroupFolder& folder) {
  json entry = {{"name", folder.name()}, {"state", "running"}, {"folder", folder.path.string()}};
  try {
    const json about = connect(folder)->welcome();
    for (const char* key : {"pid", "world_size", "started", "sentence", "cells", "gpus", "backend", "journal"})
      entry[key] = about.at(key);
    entry["state"] = about.at("phase");
    entry["clients"] = about.at("clients").size() - 1;  // without us
    size_t lost = 0;
    for (const json& rank : about.at("ranks")) lost += rank.value("status", "") != "ready" ? 1 : 0;
    entry["lost"] = lost;
  } catch (const std::exception& error) {
    // Still starting, or its coordinator is stopped: it is there all the same.
    entry["state"] = "silent";
    entry["why"] = error.what();
  }
  return entry;
}

json describe_lost(const Context& context, const client::GroupFolder& folder) {
  json entry = {{"name", folder.name()}, {"state", "lost"}, {"folder", folder.path.string()}};
  if (auto past = read_past(context.state, folder.name()))
    entry.update({{"last", past->last}, {"lines", past->lines}, {"why", describe(*past, folder.name())}});
  return entry;
}

std::string row_of(const json& entry) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const size_t lost = entry.value("lost", size_t{0});
  const size_t cells = entry.value("cells", json::array()).size();
  std::string what = entry.value("sentence", entry.value("why", ""));
  if (lost > 0) what += fmt::format("; {} lost", counted(lost, "rank"));
  return fmt::format("{:<20} {:<9} {:>5}  {:<8} {:<8} {}", entry.value("name", ""), entry.value("state", ""),
                     entry.contains("world_size") ? std::to_string(entry.value("world_size", 0)) : "-",
                     entry.contains("cells") ? (cells == 0 ? "idle" : counted(cells, "cell")) : "-",
                     entry.contains("started") ? duration(now - entry.value("started", now)) : "-", what);
}

}  // namespace

int ls(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(ls_flags(), arguments);
  refuse_words(flags);
  if (flags.has("--json") && flags.has("--names")) throw ConfigError("ddip ls --json --names: expected one of the two");
  json groups = json::array();
  for (const KnownGroup& group : known_groups(context)) {
    if (flags.has("--names")) {
      if (group.running) fmt::print("{}\n", group.folder.name());
      continue;
    }
    groups.push_back(group.running ? describe_running(group.folder) : describe_lost(context, group.folder));
  }
  if (flags.has("--names")) return 0;
  if (flags.has("--json")) return print_json(groups);
  if (groups.empty()) {
    fmt::print("no group is running; ddip up starts one\n");
    return 0;
  }
  fmt::print("{}\n", context.out.bold(fmt::format("{:<20} {:<9} {:>5}  {:<8} {:<8} {}", "NAME", "STATE", "RANKS",
                                                  "RUNS", "UP", "WHAT")));
  for (const json& entry : groups) fmt::print("{}\n", row_of(entry));
  return 0;
}

}  // namespace ddip::app
