#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <sstream>

#include "cell_view.h"
#include "code_source.h"
#include "command.h"
#include "ddip/base/error.h"
#include "ddip/launch/rank_list.h"
#include "explanation.h"
#include "find_group.h"
#include "past.h"
#include "question.h"
#include "replaced.h"
#include "tables.h"
#include "write_all.h"

namespace ddip::app {

using client::Milliseconds;
using wire::json;
using wire::Type;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto kTick = 50ms;
constexpr auto kPrompt = 900ms;  // after Ctrl-C a report comes, whatever the ranks do
constexpr auto kSilence = 10s;   // then we look whether somebody waits for somebody who will not come

volatile sig_atomic_t presses = 0;

void count_presses() {
  struct sigaction action{};
  action.sa_handler = [](int) { presses = presses + 1; };
  ::sigaction(SIGINT, &action, nullptr);  // without SA_RESTART: a question ends too
}

std::string first_line(const std::string& code) {
  std::istringstream lines(code);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin != std::string::npos) return shortened(line.substr(begin), 80);
  }
  return "";
}

// One cell, from the request to its end, with what Ctrl-C means on the way.
class Execution {
 public:
  Execution(const Context& context, client::GroupFolder folder, bool prefix)
      : context_(context),
        folder_(std::move(folder)),
        client_(connect(folder_)),
        journal_(client_->welcome().value("journal", "")),
        output_({prefix && world_size() > 1, context.out.terminal && context.err.terminal, RankOutput::Frames::newest,
                 context.out, [](int stream, std::string_view bytes) { write_all(stream, bytes); }}),
        view_(output_, context.err) {}

  int world_size() const { return client_->welcome().at("world_size").get<int>(); }

  uint64_t submit(const std::string& code, const std::vector<int>& ranks) {
    const client::Accepted accepted = client_->execute(
        {{"kind", "cell"}, {"code", code}, {"first_line", first_line(code)}, {"ranks", ranks}}, {}, kAnswer, true);
    cell_ = accepted.cell;
    std::string before;
    for (const json& other : accepted.behind) {
      const std::string text = fmt::format("cell {} ({})", other.value("cell", 0), one_line(other.value("line", "")));
      if (before.find(text) == std::string::npos) before += (before.empty() ? "" : ", ") + text;
    }
    if (!before.empty()) say(fmt::format("cell {} waits behind {}; ddip why says what that does", cell_, before));
    return cell_;
  }

  // Returns the exit code.
  int follow() {
    try {
      auto heard = Clock::now();
      bool looked = false;
      while (!view_.finished()) {
        on_presses();
        if (auto event = client_->next(cell_, kTick)) {
          take(*event);
          heard = Clock::now();
          looked = false;
          continue;
        }
        output_.refresh();
        if (!looked && Clock::now() - heard > kSilence) {
          looked = true;
          name_the_missing();
        }
      }
    } catch (const PeerLost&) {
      output_.finish_all();
      if (auto past = read_past(context_.state, folder_.name()))
        throw PeerLost("ddip exec: " + describe(*past, folder_.name()));
      throw;
    }
    return conclude();
  }

 private:
  void take(const client::CellEvent& event) {
    if (event.type == Type::input_request) return answer_input(event);
    if (event.type == Type::record) view_.take(event);
  }

  // The first press interrupts; then comes a report. Only a press after the report, which says what would be lost,
  // replaces ranks.
  void on_presses() {
    const int count = std::exchange(seen_, static_cast<int>(presses));
    if (count == seen_) {
      if (stage_ == Stage::interrupted && Clock::now() - pressed_ > kPrompt) report_stuck();
      return;
    }
    if (stage_ == Stage::running) {
      stage_ = Stage::interrupted;
      pressed_ = Clock::now();
      client_->request(Type::interrupt, {{"cell", cell_}, {"kill", false}}, kAnswer);
      return say(fmt::format("interrupting cell {} on all its ranks", cell_));
    }
    if (stage_ != Stage::reported) return;
    stage_ = Stage::killed;
    before_kill_ = client_->request(Type::info, json::object(), kAnswer);
    client_->request(Type::interrupt, {{"cell", cell_}, {"kill", true}}, kAnswer);
    say("replacing the ranks that are stuck by empty ones");
  }

  void report_stuck() {
    stage_ = Stage::reported;
    const json why = client_->request(Type::why, json::object(), kAnswer);
    std::vector<int> stuck;
    for (const json& rank : why.at("ranks")) {
      if (rank.value("cell", uint64_t{0}) != cell_ && !rank.contains("silent")) continue;
      stuck.push_back(rank.value("rank", 0));
      say(fmt::format("rank {} goes on: {}", stuck.back(), place_of(rank, journal_)));
    }
    if (stuck.empty()) return;
    say(fmt::format("Ctrl-C again replaces {}: all variables there are lost. Ctrl-\\ leaves; the cell goes on",
                    ranks_in_words(stuck)));
  }

  void name_the_missing() {
    const json why = client_->request(Type::why, json::object(), kAnswer);
    for (const std::string& line : explanation(why, journal_)) {
      if (!line.starts_with("rank ")) say("no output for 10 s: " + line);
    }
  }

  // input() and breakpoint() on a rank: asked here, where there is somebody to ask.
  void answer_input(const client::CellEvent& event) {
    if (::isatty(0) != 1) {
      return client_->send(Type::input_reply, {{"error", "input() needs a terminal, and `ddip exec` has none"}},
                           event.rank, cell_);
    }
    output_.refresh();
    const Answer answer = ask(fmt::format("[{}] {}", event.rank, event.body.value("prompt", "")),
                              event.body.value("secret", false), [this] { return presses != seen_; });
    const bool interrupted = answer.kind == Answer::Kind::interrupted;
    // The first press interrupts the cell, and with it the rank that asks; later ones do not.
    if (interrupted && stage_ == Stage::running) return;
    const json reply = answer.kind == Answer::Kind::line
                           ? json{{"text", answer.text}}
                           : json{{"error", interrupted ? "interrupted" : "end of input"}};
    client_->send(Type::input_reply, reply, event.rank, cell_);
  }

  int conclude() {
    if (view_.succeeded()) return 0;
    std::string text;
    for (const auto& [outcome, word] : {std::pair("error", "failed on"), std::pair("lost", "was lost on"),
                                        std::pair("interrupted", "was interrupted on")}) {
      const std::vector<int> ranks = view_.ranks_that(outcome);
      if (!ranks.empty()) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", word, ranks_in_words(ranks));
    }
    say(fmt::format("cell {} {}", cell_, text));
    if (stage_ == Stage::killed) {  // the next command finds them ready
      const std::vector<int> replaced = view_.ranks_that("lost");
      await_replaced(*client_, before_kill_, replaced);
      if (!replaced.empty())
        say(fmt::format("{} back, empty; process groups have to be made anew",
                        ranks_in_words(replaced) + (replaced.size() == 1 ? " is" : " are")));
    }
    return 1;
  }

  void say(const std::string& text) { output_.say(context_.err.yellow("ddip exec: ") + text); }

  enum class Stage { running, interrupted, reported, killed };

  const Context& context_;
  const client::GroupFolder folder_;
  std::unique_ptr<client::Client> client_;
  const std::filesystem::path journal_;
  RankOutput output_;
  CellView view_;
  uint64_t cell_ = 0;
  Stage stage_ = Stage::running;
  int seen_ = 0;
  Clock::time_point pressed_{};
  json before_kill_;
};

struct Words {
  std::string group;
  std::string code = "-";
};

// NAME CODE, or one of the two: a single word is a name if a group of that name runs.
Words understand(const Context& context, const launch::Flags& flags, const Arguments& rest) {
  std::vector<std::string> words = flags.words();
  words.insert(words.end(), rest.begin(), rest.end());
  if (words.size() > 2) {
    throw ConfigError(
        fmt::format("ddip exec {}: expected NAME and CODE at most; quote the code: ddip exec NAME 'print(1)'",
                    launch::shown(words[2])));
  }
  Words found;
  if (words.size() == 2) {
    found.group = launch::group_name({"ddip exec " + launch::shown(words[0]), words[0]});
    found.code = words[1];
  } else if (words.size() == 1) {
    const bool is_group =
        launch::is_group_name(words[0]) && client::is_running(client::group_folder(context.runtime, words[0]));
    (is_group ? found.group : found.code) = words[0];
  }
  return found;
}

}  // namespace

launch::FlagTable exec_flags() {
  using launch::Takes;
  return {"ddip exec",
          "run code on a group's workers and show what they print",
          "[NAME] [flags] [- | CODE | FILE.py]",
          {{"where", {{"--ranks", "", Takes::Value, "LIST", "only there: 0,2-3 (default all)"}}},
           {"output",
            {{"--no-prefix", "", Takes::Nothing, "", "lines without their rank in front"},
             {"--detach", "-d", Takes::Nothing, "",
              "do not wait: print the cell's number; ddip log and ddip wait follow it"}}}},
          {"ddip exec 'import torch; print(torch.get_num_threads())'", "ddip exec train train.py --ranks 0",
           "echo 'print(1)' | ddip exec -",
           "# Ctrl-C interrupts the cell on all ranks and keeps their variables; exit 1 if a rank failed"}};
}

int exec(const Context& context, const Arguments& arguments) {
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");  // behind it all is code
  const launch::Flags flags(exec_flags(), Arguments(arguments.begin(), dashes));
  const Words words =
      understand(context, flags, Arguments(dashes == arguments.end() ? dashes : dashes + 1, arguments.end()));
  if (flags.has("--ranks")) launch::check_rank_list(flags.value("--ranks").text, "ddip exec --ranks");
  const client::GroupFolder folder = find_group(context, flags.command(), words.group);
  const std::string code = read_code(words.code, flags.command());

  Execution execution(context, folder, !flags.has("--no-prefix"));
  const std::string list = flags.has("--ranks") ? flags.value("--ranks").text : "all";
  const std::vector<int> ranks = launch::parse_rank_list(list, execution.world_size(), "ddip exec --ranks");
  if (!flags.has("--detach")) count_presses();
  const uint64_t cell = execution.submit(code, ranks);
  if (!flags.has("--detach")) return execution.follow();
  fmt::print("{}\n", cell);
  return 0;
}

}  // namespace ddip::app
