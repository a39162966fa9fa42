#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <set>
#include <thread>

#include "command.h"
#include "ddip/base/error.h"
#include "explanation.h"
#include "find_group.h"
#include "replaced.h"
#include "tables.h"

namespace ddip::app {

using wire::json;
using wire::Type;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto kPrompt = 900ms;  // the worker's ladder is over by then
constexpr auto kLook = 20ms;

json open_cells(client::Client& client, uint64_t wanted) {
  json found = json::array();
  const json info = client.request(Type::info, json::object(), kAnswer);
  for (const json& cell : info.at("cells")) {
    if (wanted == 0 || cell.value("cell", uint64_t{0}) == wanted) found.push_back(cell);
  }
  return found;
}

std::vector<int> ranks_of(const json& cells) {
  std::set<int> ranks;
  for (const json& cell : cells) {
    for (int rank : cell.at("open").get<std::vector<int>>()) ranks.insert(rank);
  }
  return {ranks.begin(), ranks.end()};
}

std::string describe_cell(const json& cell) {
  return fmt::format("cell {} on {}, {} so far: {}", cell.value("cell", 0),
                     ranks_in_words(cell.at("open").get<std::vector<int>>()), duration(cell.value("seconds", 0.0)),
                     one_line(cell.value("line", "")));
}

// Ranks that have a cell open still, and where they are.
json stuck_ranks(client::Client& client, const json& cells) {
  const std::string journal = client.welcome().value("journal", "");
  const std::vector<int> open = ranks_of(cells);
  json found = json::array();
  if (open.empty()) return found;
  const json why = client.request(Type::why, json::object(), kAnswer);
  for (const json& rank : why.at("ranks")) {
    const int number = rank.value("rank", -1);
    if (std::find(open.begin(), open.end(), number) != open.end())
      found.push_back({{"rank", number}, {"where", place_of(rank, journal)}});
  }
  return found;
}

json await_end(client::Client& client, uint64_t wanted) {
  const auto deadline = Clock::now() + kPrompt;
  json cells = open_cells(client, wanted);
  while (!cells.empty() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kLook);
    cells = open_cells(client, wanted);
  }
  return cells;
}

}  // namespace

launch::FlagTable interrupt_flags() {
  using launch::Takes;
  return {
      "ddip interrupt",
      "stop running cells; the workers keep their variables",
      "[NAME] [--cell N] [--kill] [--json]",
      {{"what",
        {{"--cell", "", Takes::Value, "N", "only this cell (default: all that run or wait)"},
         {"--kill", "", Takes::Nothing, "", "replace the ranks that run it by empty ones: their variables are lost"}}},
       {"form", {kJsonFlag}}},
      {"ddip interrupt", "ddip interrupt train --cell 4 --kill",
       "# exit 1 if a rank goes on: in a long operator, or with interrupts ignored"}};
}

int interrupt(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(interrupt_flags(), arguments);
  const std::string name = name_word(flags);
  const uint64_t wanted =
      flags.has("--cell") ? launch::whole_number(flags.value("--cell"), {"a cell's number", 1, UINT64_MAX >> 1}) : 0;
  const bool kill = flags.has("--kill");
  auto client = connect(find_group(context, flags.command(), name));
  const json before = client->request(Type::info, json::object(), kAnswer);
  const json cells = open_cells(*client, wanted);
  if (wanted != 0 && cells.empty()) {
    std::vector<uint64_t> running;
    for (const json& cell : before.at("cells")) running.push_back(cell.value("cell", uint64_t{0}));
    throw ConfigError(fmt::format("ddip interrupt --cell {}: that cell is not running; running: {}", wanted,
                                  running.empty() ? "none" : fmt::format("{}", fmt::join(running, ", "))));
  }
  json answer = {{"group", before.at("name")}, {"cells", cells}, {"killed", json::array()}, {"stuck", json::array()}};
  const std::vector<int> ranks = ranks_of(cells);
  const bool aloud = !flags.has("--json");
  if (cells.empty()) {
    if (aloud) fmt::print("nothing runs in group {}\n", before.value("name", ""));
  } else if (kill) {
    if (aloud) {
      for (const json& cell : cells) fmt::print("killing {}\n", describe_cell(cell));
      fmt::print("{} replaced: all variables there are lost\n",
                 ranks_in_words(ranks) + (ranks.size() == 1 ? " is" : " are"));
    }
    // A rank may have ended its cell meanwhile; the coordinator knows whom it replaced.
    std::set<int> killed;
    const json touched = client->request(Type::interrupt, {{"cell", wanted}, {"kill", true}}, kAnswer);
    for (const json& cell : touched.at("cells")) {
      for (int rank : cell.at("ranks").get<std::vector<int>>()) killed.insert(rank);
    }
    const json now = await_replaced(*client, before, {killed.begin(), killed.end()});
    answer["killed"] = killed;
    for (int rank : killed) {
      if (aloud)
        fmt::print("rank {} is back, empty (pid {}); process groups have to be made anew\n", rank,
                   now.at("ranks").at(static_cast<size_t>(rank)).value("pid", 0));
    }
  } else {
    client->request(Type::interrupt, {{"cell", wanted}, {"kill", false}}, kAnswer);
    if (aloud) {
      for (const json& cell : cells) fmt::print("interrupted {}\n", describe_cell(cell));
    }
    answer["stuck"] = stuck_ranks(*client, await_end(*client, wanted));
    if (aloud) {
      for (const json& rank : answer.at("stuck"))
        fmt::print("rank {} goes on: {}\n", rank.value("rank", 0), rank.value("where", ""));
      if (!answer.at("stuck").empty())
        fmt::print("ddip interrupt --kill replaces {}; all variables there would be lost\n",
                   answer.at("stuck").size() == 1 ? "it" : "them");
      else
        fmt::print("all ranks are free, with their variables\n");
    }
  }
  if (!aloud) print_json(answer);
  return answer.at("stuck").empty() ? 0 : 1;
}

}  // namespace ddip::app
