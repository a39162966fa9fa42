#include <fmt/format.h>

#include <chrono>

#include "command.h"
#include "ddip/base/error.h"
#include "explanation.h"
#include "find_group.h"
#include "past.h"
#include "tables.h"

namespace ddip::app {

using wire::json;
using wire::Type;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

// Until a cell ends, somewhere; at most `patience`.
void await_news(client::Client& client, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (Clock::now() < deadline) {
    auto event = client.next(0, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()));
    if (event && event->kind == client::RecordKind::cell_done) return;
  }
}

int complain(client::Client& client, const json& cells, double seconds) {
  const json why = client.request(Type::why, json::object(), kAnswer);
  for (const json& cell : cells) {
    fmt::print(stderr, "ddip wait: cell {} still runs after {}: {}\n", cell.value("cell", 0), duration(seconds),
               one_line(cell.value("line", "")));
  }
  for (const std::string& line : explanation(why, client.welcome().value("journal", "")))
    fmt::print(stderr, "  {}\n", line);
  return 1;
}

}  // namespace

launch::FlagTable wait_flags() {
  return {"ddip wait",
          "until no cell runs",
          "[NAME] [--timeout S]",
          {{"how long",
            {{"--timeout", "-t", launch::Takes::Value, "S",
              "seconds, or 10m, 2h (default: for ever); exit 1 when they are over"}}}},
          {"ddip exec --detach train.py && ddip wait && ddip log"}};
}

int wait(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(wait_flags(), arguments);
  const std::string name = name_word(flags);
  const bool limited = flags.has("--timeout");
  const double seconds = limited ? launch::seconds(flags.value("--timeout"), "look once").count() : 0;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  const client::GroupFolder folder = find_group(context, flags.command(), name);
  try {
    auto client = connect(folder);
    client->request(Type::watch, {{"after", client->welcome().at("last_sequence")}}, kAnswer);
    for (;;) {
      const json cells = client->request(Type::info, json::object(), kAnswer).at("cells");
      if (cells.empty()) return 0;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      if (limited && left <= 0ms) return complain(*client, cells, seconds);
      await_news(*client, limited ? std::min<std::chrono::milliseconds>(left, 1s) : 1s);
    }
  } catch (const PeerLost&) {
    if (auto past = read_past(context.state, folder.name()))
      throw PeerLost("ddip wait: " + describe(*past, folder.name()));
    throw;
  }
}

}  // namespace ddip::app
