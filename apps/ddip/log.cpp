#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "cell_view.h"
#include "command.h"
#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"
#include "ddip/coordinator/journal.h"
#include "find_group.h"
#include "last_lines.h"
#include "past.h"
#include "tables.h"

namespace ddip::app {

using client::CellEvent;
using client::RecordKind;
using wire::json;

namespace {

constexpr uint64_t kMostLines = 1'000'000;  // --tail holds them in memory

struct Wanted {
  std::string group;
  uint64_t cell = 0;            // 0: all
  std::optional<size_t> lines;  // only the newest so many
};

CellEvent as_event(const coordinator::Record& record) {
  CellEvent event;
  event.type = wire::Type::record;
  event.cell = record.cell;
  event.rank = record.rank;
  event.kind = static_cast<RecordKind>(record.kind);
  event.stream = record.stream;
  event.sequence = record.sequence;
  event.bytes = record.body;
  return event;
}

// Prints records in the journal's order; a headline wherever another cell speaks.
class Replay {
 public:
  Replay(const Context& context, const Wanted& wanted, bool as_json)
      : wanted_(wanted.cell),
        as_json_(as_json),
        lines_(wanted.lines),
        style_(context.out),
        output_({true, false, RankOutput::Frames::newest, context.out,
                 [this](int, std::string_view bytes) { lines_.write(bytes); }}) {}

  void take(const coordinator::Record& record) {
    last_ = record.sequence;
    if (wanted_ != 0 && record.cell != wanted_ && record.kind != coordinator::RecordKind::gap) return;
    ++shown_;
    if (as_json_) return print_line(record);
    headline(record);
    CellView& view = views_.try_emplace(record.cell, output_, style_).first->second;
    const CellEvent event = as_event(record);
    view.take(event);
    if (event.kind != RecordKind::cell_done) return;
    if (!view.succeeded()) lines_.write(style_.red(fmt::format("── cell {} failed", record.cell)) + "\n");
    views_.erase(record.cell);
  }

  // The past is over: what is held back is shown, and what comes from here on at once.
  void go_live() { lines_.release(); }
  void finish() {
    output_.finish_all();
    lines_.release();
    std::fflush(stdout);
  }
  uint64_t last() const { return last_; }
  size_t shown() const { return shown_; }

 private:
  void print_line(const coordinator::Record& record) {
    static constexpr const char* kKinds[] = {"cell_started", "output", "display", "rank_done",
                                             "cell_done",    "note",   "gap"};
    json line = {{"sequence", record.sequence},
                 {"time", static_cast<double>(record.time_us) * 1e-6},
                 {"cell", record.cell},
                 {"rank", record.rank},
                 {"kind", kKinds[static_cast<size_t>(record.kind)]}};
    const bool is_text = record.kind == coordinator::RecordKind::output ||
                         record.kind == coordinator::RecordKind::note || record.kind == coordinator::RecordKind::gap;
    if (record.kind == coordinator::RecordKind::output) line["stream"] = record.stream == 2 ? "stderr" : "stdout";
    if (is_text)
      line["text"] = record.body;
    else
      line["body"] = parse_body(record.body);
    lines_.write(line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
  }

  void headline(const coordinator::Record& record) {
    if (record.cell == current_ || record.cell == 0) return;
    const bool starts = record.kind == coordinator::RecordKind::cell_started;
    // A queued cell is started while another one speaks; its headline comes with its first word.
    output_.finish_all();
    current_ = record.cell;
    std::string about;
    if (starts) {
      const json body = parse_body(record.body);
      std::string line = body.value("source", "");
      line = line.substr(0, line.find('\n', line.find_first_not_of('\n')));
      about = fmt::format(", {}, {}: {}", moment(static_cast<double>(record.time_us) * 1e-6),
                          ranks_in_words(body.value("ranks", std::vector<int>{})), shortened(one_line(line), 80));
    } else {
      about = ", continued";
    }
    lines_.write(style_.bold(fmt::format("── cell {}{}", record.cell, about)) + "\n");
  }

  const uint64_t wanted_;
  const bool as_json_;
  LastLines lines_;
  const Style style_;
  RankOutput output_;
  std::map<uint64_t, CellView> views_;
  uint64_t current_ = 0;
  uint64_t last_ = 0;
  size_t shown_ = 0;
};

// NAME CELL, or one of the two: a single number is a cell.
Wanted understand(const launch::Flags& flags) {
  Wanted wanted;
  const std::vector<std::string>& words = flags.words();
  auto place = [&](size_t index) {
    return launch::FlagText{flags.command() + " " + launch::shown(words[index]), words[index]};
  };
  auto is_number = [](const std::string& word) { return word.find_first_not_of("0123456789") == std::string::npos; };
  if (words.size() > 2) launch::refuse(place(2), "expected NAME and CELL at most");
  if (words.size() == 2 || (words.size() == 1 && !is_number(words[0]))) wanted.group = launch::group_name(place(0));
  if (words.size() == 2 || (words.size() == 1 && is_number(words[0]))) {
    wanted.cell = launch::whole_number(place(words.size() - 1), {"a cell's number", 1, UINT64_MAX >> 1});
  }
  if (flags.has("--tail"))
    wanted.lines = launch::whole_number(flags.value("--tail"), {"a number of lines", 1, kMostLines});
  return wanted;
}

// The only running group; without one, the only group with a journal.
std::string only_group(const Context& context, const launch::Flags& flags) {
  std::vector<std::string> running;
  for (const KnownGroup& group : known_groups(context)) {
    if (group.running) running.push_back(group.folder.name());
  }
  const std::vector<std::string> names = running.empty() ? groups_with_journal(context.state) : running;
  if (names.size() == 1) return names.front();
  if (names.empty()) throw ConfigError(flags.command() + ": no group has a journal yet; ddip up starts one");
  throw ConfigError(fmt::format("{}: {} groups {} ({}); expected one's name: {} NAME", flags.command(), names.size(),
                                running.empty() ? "have a journal" : "are running", fmt::join(names, ", "),
                                flags.command()));
}

void read_on(Replay& replay, const std::filesystem::path& journal) {
  coordinator::read_journal(journal, replay.last(), [&](const coordinator::Record& record) {
    replay.take(record);
    return true;
  });
}

// New records are announced by the coordinator and read from the journal: nothing is elided however slow we are.
void follow(Replay& replay, const client::GroupFolder& folder, const std::filesystem::path& journal) {
  try {
    auto client = connect(folder);
    client->request(wire::Type::watch, {{"after", replay.last()}}, kAnswer);
    read_on(replay, journal);
    for (;;) {
      std::fflush(stdout);
      auto event = client->next(0, std::chrono::milliseconds(1000));
      if (event && (event->sequence > replay.last() || event->kind == RecordKind::gap)) read_on(replay, journal);
    }
  } catch (const PeerLost&) {
    read_on(replay, journal);
  }
}

}  // namespace

launch::FlagTable log_flags() {
  using launch::Takes;
  return {"ddip log",
          "what the workers printed, from the journal; works after the group is gone",
          "[NAME] [CELL] [--tail N] [--follow] [--json]",
          {{"what",
            {{"--tail", "", Takes::Value, "N", "only the newest N lines"},
             {"--follow", "-f", Takes::Nothing, "", "go on as long as the group runs; Ctrl-C leaves"}}},
           {"form", {{"--json", "", Takes::Nothing, "", "one JSON object a line, every record"}}}},
          {"ddip log", "ddip log train 4 | less", "ddip log -f"}};
}

int log(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(log_flags(), arguments);
  const Wanted wanted = understand(flags);
  const std::string name = wanted.group.empty() ? only_group(context, flags) : wanted.group;
  const std::filesystem::path journal = client::newest_journal(context.state, name);
  if (journal.empty()) {
    const std::vector<std::string> known = groups_with_journal(context.state);
    const std::string near = did_you_mean(name, known);
    const std::string listed =
        known.empty() ? "no group has one" : fmt::format("there are journals of {}", fmt::join(known, ", "));
    throw ConfigError(
        fmt::format("ddip log {}: no journal of a group of this name{} {}", name, near.empty() ? ";" : near, listed));
  }
  const client::GroupFolder folder = client::group_folder(context.runtime, name);
  Replay replay(context, wanted, flags.has("--json"));
  read_on(replay, journal);
  if (flags.has("--follow") && client::is_running(folder)) {
    replay.go_live();
    follow(replay, folder, journal);
  }
  replay.finish();
  if (wanted.cell != 0 && replay.shown() == 0)
    throw ConfigError(
        fmt::format("ddip log {} {}: no such cell in the journal; ddip log {} shows all", name, wanted.cell, name));
  if (!client::is_running(folder)) {
    if (auto past = read_past(context.state, name))
      fmt::print(stderr, "{}\n", context.err.yellow("ddip log: ") + describe(*past, name));
  }
  return 0;
}

}  // namespace ddip::app
