#include <gtest/gtest.h>
// gtest first: rapidcheck/gtest.h does not include it.
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <sstream>

#include "ddip/client/difference.h"
#include "ddip/client/terminal.h"

namespace ddip::client {
namespace {

using namespace std::chrono_literals;
using Form = Difference::Form;

constexpr Stream kStreams[] = {Stream::out, Stream::err};

// What one rank writes to one stream, and how much of it is written.
struct Script {
  int rank;
  Stream stream;
  std::string bytes;
  size_t written = 0;
};

// Few different lines, so that ranks often say the same and often do not. No line begins with '['.
std::string some_lines(bool with_bars) {
  auto lines = *rc::gen::container<std::vector<std::string>>(rc::gen::weightedElement<std::string>(
      {{6, "a\n"}, {6, "b\n"}, {4, "c\n"}, {3, "\n"}, {2, "long\xc3\xa9 line \xff\n"}, {2, "d\ne\nf\n"}}));
  if (with_bars) {
    const auto bars = *rc::gen::container<std::vector<std::string>>(
        rc::gen::element<std::string>("\r10%", "\r20% ", "\x1b[A", "x\b", "\x1b[2K", "\n", "\r\n"));
    for (const auto& bar : bars) {
      const long place = *rc::gen::inRange<long>(0, static_cast<long>(lines.size()) + 1);
      lines.insert(lines.begin() + place, bar);
    }
  }
  std::string bytes;
  for (const auto& line : lines) bytes += line;
  if (*rc::gen::inRange(0, 3) == 0) bytes += "unended";
  return bytes;
}

std::vector<int> some_ranks() {
  std::vector<int> ranks{0, 1, 2, 3, 5};
  ranks.resize(*rc::gen::inRange<size_t>(1, 6));
  return ranks;
}

std::vector<Script> some_scripts(const std::vector<int>& ranks, bool with_bars) {
  std::vector<Script> scripts;
  const std::string shared = some_lines(false);
  for (const int rank : ranks) {
    for (const Stream stream : kStreams) {
      const std::string own = some_lines(with_bars);
      const std::vector<std::string> choices{own, shared, own + "\n" + shared, "", shared + own};
      scripts.push_back({rank, stream, *rc::gen::elementOf(choices)});
    }
  }
  return scripts;
}

// What one rank says, in order, adjacent lines of one stream in one piece.
using Story = std::vector<Text>;

void add(Story& story, Stream stream, const std::string& text) {
  if (text.empty()) return;
  if (story.empty() || story.back().stream != stream) story.push_back({stream, ""});
  story.back().text += text;
}

// The lines that each rank ended, in the order in which it did.
class Told {
 public:
  void write(int rank, Stream stream, std::string_view bytes) {
    Terminal& terminal = terminals_[{rank, stream}];
    terminal.write(bytes);
    const auto lines = terminal.take_settled();
    if (!lines.empty()) take_bars(rank, stream == Stream::out ? Stream::err : Stream::out);
    take(rank, stream, lines);
  }

  void close(int rank) {
    for (const Stream stream : kStreams) take_bars(rank, stream);
    for (const Stream stream : kStreams) {
      terminals_[{rank, stream}].finish();
      take(rank, stream, terminals_[{rank, stream}].take_settled());
    }
  }

  Story lines(int rank, bool end_the_last = false) const {
    Story story;
    const auto found = lines_.find(rank);
    if (found == lines_.end()) return story;
    for (const auto& [stream, text] : found->second)
      add(story, stream, end_the_last && !text.ends_with('\n') ? text + "\n" : text);
    return story;
  }

 private:
  void take_bars(int rank, Stream stream) {
    terminals_[{rank, stream}].settle_above();
    take(rank, stream, terminals_[{rank, stream}].take_settled());
  }
  void take(int rank, Stream stream, const std::vector<Terminal::Line>& lines) {
    for (const auto& line : lines) lines_[rank].push_back({stream, line.text});
  }

  std::map<std::pair<int, Stream>, Terminal> terminals_;
  std::map<int, std::vector<Text>> lines_;
};

// Writes the scripts in some interleaving and chunking, closing each rank at some time after its last byte.
// 'step' is called after each write with the time. Returns what was to be shown.
template <class Step>
Told play(Difference& difference, std::vector<Script>& scripts, int longest_pause_ms, Step step) {
  Told told;
  Difference::Time now{};
  std::vector<int> to_close;
  for (const Script& script : scripts) {
    if (script.stream == Stream::out) to_close.push_back(script.rank);
  }
  while (!to_close.empty()) {
    now += std::chrono::milliseconds(*rc::gen::inRange(0, longest_pause_ms + 1));
    const auto which = static_cast<long>(*rc::gen::inRange<size_t>(0, to_close.size()));
    const int rank = to_close[static_cast<size_t>(which)];
    std::vector<Script*> left;
    for (Script& script : scripts) {
      if (script.rank == rank && script.written < script.bytes.size()) left.push_back(&script);
    }
    if (left.empty()) {
      difference.close(rank, now);
      told.close(rank);
      to_close.erase(to_close.begin() + which);
    } else {
      Script& script = *left[*rc::gen::inRange<size_t>(0, left.size())];
      const auto chunk = std::string_view(script.bytes).substr(script.written, *rc::gen::inRange<size_t>(1, 12));
      difference.write(rank, script.stream, chunk, now);
      told.write(rank, script.stream, chunk);
      script.written += chunk.size();
    }
    step(now);
  }
  return told;
}

std::string rebuilt_from_blocks(const std::vector<Block>& blocks, int rank, Stream stream) {
  std::string text;
  for (const Block& block : blocks) {
    const bool has = std::find(block.ranks.begin(), block.ranks.end(), rank) != block.ranks.end();
    if (has && block.stream == stream) text += block.text;
  }
  return text;
}

Story rebuilt_from_blocks(const std::vector<Block>& blocks, int rank) {
  Story story;
  for (const Block& block : blocks) {
    const bool has = std::find(block.ranks.begin(), block.ranks.end(), rank) != block.ranks.end();
    if (has) add(story, block.stream, block.text);
  }
  return story;
}

bool names(const std::string& list, int rank) {
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const int first = std::stoi(part);
    const int last = dash == std::string::npos ? first : std::stoi(part.substr(dash + 1));
    if (first <= rank && rank <= last) return true;
  }
  return false;
}

// The rank's lines, each with '\n', whether the last had one or not.
std::string rebuilt_from_text(const std::string& text, int rank) {
  std::string rebuilt;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) {
      const size_t end = line.find("] ");
      if (!names(line.substr(1, end - 1), rank)) continue;
      line.erase(0, end + 2);
    }
    rebuilt += line + "\n";
  }
  return rebuilt;
}

std::string ended(std::string text) { return text.empty() || text.back() == '\n' ? text : text + "\n"; }

Difference::Options some_options(Form form) {
  Difference::Options options;
  options.form = form;
  options.bars = Difference::Bars::every;
  options.patience = std::chrono::milliseconds(*rc::gen::element(0, 10, 300));
  options.window = *rc::gen::element<size_t>(0, 1, 3, 1000);
  return options;
}

RC_GTEST_PROP(DifferenceProperty, each_rank_s_text_is_rebuilt_in_order_from_the_blocks, (bool with_bars)) {
  const auto ranks = some_ranks();
  auto scripts = some_scripts(ranks, with_bars);
  Difference difference(ranks, some_options(Form::rerender));
  const Told told = play(difference, scripts, 100, [&](Difference::Time now) {
    if (*rc::gen::arbitrary<bool>()) difference.advance(now + 50ms);
    if (*rc::gen::arbitrary<bool>()) difference.blocks();
  });
  for (const int rank : ranks) RC_ASSERT(rebuilt_from_blocks(difference.blocks(), rank) == told.lines(rank));
  for (const Script& script : scripts) {
    if (!with_bars) RC_ASSERT(rebuilt_from_blocks(difference.blocks(), script.rank, script.stream) == script.bytes);
  }
  for (size_t i = 1; i < difference.blocks().size(); ++i) {
    const Block& a = difference.blocks()[i - 1];
    const Block& b = difference.blocks()[i];
    RC_ASSERT(a.ranks != b.ranks || a.stream != b.stream);
  }
}

RC_GTEST_PROP(DifferenceProperty, each_rank_s_lines_are_rebuilt_in_order_from_the_appended_text, (bool with_bars)) {
  const auto ranks = some_ranks();
  auto scripts = some_scripts(ranks, with_bars);
  Difference difference(ranks, some_options(Form::append));
  Story whole;
  const auto take = [&](Difference::Time now) {
    for (const Text& text : difference.take_text(now)) add(whole, text.stream, text.text);
  };
  Difference::Time last{};
  const Told told = play(difference, scripts, 100, [&](Difference::Time now) {
    if (*rc::gen::arbitrary<bool>()) take(now);
    last = now;
  });
  take(last);
  for (const int rank : ranks) {
    Story rebuilt;
    for (const Text& text : whole) add(rebuilt, text.stream, rebuilt_from_text(text.text, rank));
    RC_ASSERT(rebuilt == told.lines(rank, true));
  }
}

RC_GTEST_PROP(DifferenceProperty, ranks_that_say_the_same_within_patience_are_never_told_apart, (bool append)) {
  const auto ranks = some_ranks();
  const std::string bytes = some_lines(false);
  std::vector<Script> scripts;
  for (const int rank : ranks) {
    scripts.push_back({rank, Stream::out, bytes});
    scripts.push_back({rank, Stream::err, ""});
  }
  Difference difference(ranks, {.form = append ? Form::append : Form::rerender, .patience = 24h});
  std::string text;
  play(difference, scripts, 100, [&](Difference::Time now) {
    for (const Text& piece : difference.take_text(now)) text += piece.text;
    for (const Block& block : difference.blocks()) RC_ASSERT(block.ranks == ranks);
  });
  if (append) {
    RC_ASSERT(text == bytes);
  } else {
    RC_ASSERT(difference.blocks().size() == (bytes.empty() ? 0u : 1u));
    RC_ASSERT(rebuilt_from_blocks(difference.blocks(), 0, Stream::out) == bytes);
  }
}

RC_GTEST_PROP(DifferenceProperty, ranks_that_say_the_same_end_as_one_block_however_late_they_are, ()) {
  const auto ranks = some_ranks();
  const std::string bytes = some_lines(false);
  std::vector<Script> scripts;
  for (const int rank : ranks) {
    scripts.push_back({rank, Stream::out, bytes});
    scripts.push_back({rank, Stream::err, ""});
  }
  Difference difference(ranks);
  play(difference, scripts, 1000, [&](Difference::Time) { difference.blocks(); });
  RC_ASSERT(difference.blocks().size() == (bytes.empty() ? 0u : 1u));
}

RC_GTEST_PROP(DifferenceProperty, blocks_before_first_changed_did_not_change, ()) {
  const auto ranks = some_ranks();
  auto scripts = some_scripts(ranks, false);
  auto options = some_options(Form::rerender);
  options.max_lines = *rc::gen::element<size_t>(0, 4, 10);
  Difference difference(ranks, options);
  std::vector<Block> mirror;
  play(difference, scripts, 100, [&](Difference::Time) {
    const size_t from = difference.first_changed();
    const auto& blocks = difference.blocks();
    RC_ASSERT(from <= blocks.size());
    RC_ASSERT(from <= mirror.size());
    mirror.resize(from);
    mirror.insert(mirror.end(), blocks.begin() + static_cast<long>(from), blocks.end());
    RC_ASSERT(mirror == blocks);
  });
}

RC_GTEST_PROP(DifferenceProperty, the_display_is_bounded_and_the_marker_counts_what_is_missing, ()) {
  const auto ranks = some_ranks();
  auto scripts = some_scripts(ranks, false);
  auto options = some_options(Form::rerender);
  options.window = 3;
  Difference whole(ranks, options);
  options.max_lines = *rc::gen::inRange<size_t>(1, 20);
  Difference cut(ranks, options);
  const auto lines = [](const std::vector<Block>& blocks) {
    size_t count = 0;
    for (const Block& block : blocks) {
      const std::string text = block.elided == 0 ? ended(block.text) : "";
      count += static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    }
    return count;
  };
  for (const Script& script : scripts) {
    for (Difference* each : {&whole, &cut}) each->write(script.rank, script.stream, script.bytes, {});
  }
  for (const int rank : ranks) {
    for (Difference* each : {&whole, &cut}) each->close(rank, {});
  }
  size_t elided = 0;
  for (const Block& block : cut.blocks()) elided += block.elided;
  RC_ASSERT(lines(cut.blocks()) <= options.max_lines);
  RC_ASSERT(lines(cut.blocks()) + elided == lines(whole.blocks()));
}

}  // namespace
}  // namespace ddip::client
