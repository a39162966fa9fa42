#include "ddip/launch/cell_options.h"

#include <map>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"
#include "ddip/launch/rank_list.h"

namespace ddip::launch {
namespace {

const std::map<std::string, Place>& places() {
  static const std::map<std::string, Place> table = {
      {"remote", Place::Remote}, {"local", Place::Local}, {"everywhere", Place::Everywhere}};
  return table;
}

FlagTable cell_flags(const std::string& command) {
  FlagTable table;
  table.command = command;
  table.purpose = "run this cell on the workers (remote, the default), here (local), or both (everywhere)";
  table.usage = "[remote|local|everywhere] [flags]";
  table.sections = {
      {"where",
       {{"--ranks", "", Takes::Value, "LIST|all", "which workers run it: 0,2-3 (default all)"},
        {"--to", "", Takes::Value, "remote|local|both", "older spelling of the place"},
        {"--async", "", Takes::OptionalValue, "NAME", "do not wait; NAME gets the running cell"}}},
      {"output",
       {{"--see", "-S", Takes::Value, "LIST|all", "whose output to show (default all, by difference)"},
        {"--quiet", "-q", Takes::Nothing, "", "show nothing but errors"},
        {"--plain", "", Takes::Nothing, "", "every line with its rank, as it comes"},
        {"--out", "", Takes::Value, "NAME", "NAME gets the list of results, one per rank"},
        {"--verbose", "-v", Takes::Nothing, "", "time and memory of each rank afterwards"}}},
      {"advanced",
       {{"--check", "", Takes::Value, "NAMES", "afterwards, say where these variables differ between ranks"},
        {"--appcmd", "-a", Takes::Value, "F", "run it inside a command of the group's app"}}}};
  table.examples = {command + " --ranks 0,2-3 -v", command + " --async training"};
  return table;
}

void refuse_together(const Flags& flags, const std::string& a, const std::string& b, const std::string& why) {
  if (!flags.has(a) || !flags.has(b)) return;
  throw ConfigError(flags.command() + " " + flags.spelling(a) + " " + flags.spelling(b) + ": " + why +
                    "; expected one of the two");
}

std::string async_value(const Flags& flags) { return flags.has("--async") ? flags.value("--async").text : ""; }

Place place_of(const Flags& flags) {
  std::vector<std::string> words = flags.words();
  if (places().contains(async_value(flags))) words.push_back(async_value(flags));
  std::optional<Place> place;
  for (const std::string& word : words) {
    const FlagText text{flags.command() + " " + shown(word), word};
    const auto found = places().find(one_of(text, {"remote", "local", "everywhere"}));
    if (place) refuse(text, "expected one place, and one is given already");
    place = found->second;
  }
  if (flags.has("--to")) {
    const FlagText to = flags.value("--to");
    if (place) refuse(to, "expected one place, and one is given already");
    const std::string word = one_of(to, {"remote", "local", "both"});
    place = word == "both" ? Place::Everywhere : places().at(word);
  }
  return place.value_or(Place::Remote);
}

void refuse_for_local(const Flags& flags) {
  for (const std::string flag : {"--ranks", "--see", "--async", "--out", "--check", "--appcmd"}) {
    if (!flags.has(flag)) continue;
    throw ConfigError(flags.command() + " local " + flags.spelling(flag) + ": a local cell runs on no worker, so " +
                      flags.spelling(flag) + " has no meaning; expected one of the two");
  }
}

std::string rank_list(const Flags& flags, const std::string& flag) {
  const std::string text = flags.value(flag).text;
  check_rank_list(text, flags.command() + " " + flags.spelling(flag));
  return text;
}

}  // namespace

CellOptions parse_cell_flags(const std::vector<std::string>& args, const std::string& command) {
  const Flags flags(cell_flags(command), args);
  CellOptions options;
  options.place = place_of(flags);
  if (options.place == Place::Local) refuse_for_local(flags);
  refuse_together(flags, "--quiet", "--see", "one hides output, the other shows it");
  refuse_together(flags, "--async", "--check", "the cell is not done when the line ends");
  refuse_together(flags, "--async", "--out", "the cell is not done when the line ends; NAME.results() has them later");

  if (flags.has("--ranks")) options.ranks = rank_list(flags, "--ranks");
  if (flags.has("--see")) options.see = rank_list(flags, "--see");
  options.quiet = flags.has("--quiet");
  options.plain = flags.has("--plain");
  options.verbose = flags.has("--verbose");
  options.async = flags.has("--async");
  const std::string name = async_value(flags);
  if (!name.empty() && !places().contains(name)) options.async_name = python_name(flags.value("--async"));
  if (flags.has("--out")) options.out = python_name(flags.value("--out"));
  if (flags.has("--appcmd")) options.app_command = python_name(flags.value("--appcmd"));
  if (flags.has("--check")) options.check = python_names(flags.value("--check"));
  return options;
}

std::string cell_help(const std::string& command) { return help_text(cell_flags(command)); }

}  // namespace ddip::launch
