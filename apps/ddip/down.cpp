#include <fmt/format.h>

#include "command.h"
#include "ddip/base/error.h"
#include "find_group.h"
#include "stop_group.h"

namespace ddip::app {

launch::FlagTable down_flags() {
  return {"ddip down",
          "stop a group: all its processes end, its journal stays",
          "[NAME | --all] [--timeout S]",
          {{"which", {{"--all", "", launch::Takes::Nothing, "", "every group of this user"}}},
           {"how", {{"--timeout", "-t", launch::Takes::Value, "S", "seconds until it is killed (default 10)"}}}},
          {"ddip down train", "ddip down --all"}};
}

namespace {

// Lost groups have a folder to remove, so here they count.
std::vector<client::GroupFolder> chosen(const Context& context, const launch::Flags& flags, const std::string& name) {
  const std::vector<KnownGroup> known = known_groups(context);
  std::vector<client::GroupFolder> found;
  for (const KnownGroup& group : known) {
    if (flags.has("--all") || group.folder.name() == name) found.push_back(group.folder);
  }
  if (!found.empty() || flags.has("--all")) return found;
  return {find_group(context, flags.command(), name)};
}

}  // namespace

int down(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(down_flags(), arguments);
  const std::string name = name_word(flags);
  if (flags.has("--all") && !name.empty())
    throw ConfigError(fmt::format("ddip down {} --all: expected a name or --all, not both", name));
  const double patience = flags.has("--timeout") ? launch::seconds(flags.value("--timeout"), "").count() : 10;
  const std::vector<client::GroupFolder> groups = chosen(context, flags, name);
  if (groups.empty()) fmt::print("no group is running\n");
  for (const client::GroupFolder& folder : groups) fmt::print("{}\n", stop_group(folder, patience));
  return 0;
}

}  // namespace ddip::app
