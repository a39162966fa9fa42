#include "ddip/client/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <span>
#include <unordered_map>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/client/terminal.h"

namespace ddip::client {
namespace {

using Seats = std::vector<size_t>;

// Equal lines of all ranks are stored once, so that comparing lines is comparing addresses.
struct Holders {
  explicit Holders(size_t seats) : times(seats) {}
  std::vector<uint32_t> times;  // per seat, how often it is in the queue
  size_t total = 0;
};
using Table = std::unordered_map<std::string, Holders>;
using Line = Table::value_type;

// What one rank said, a stretch of it.
struct Run {
  size_t seat;
  std::span<Line* const> lines;
};
using Runs = std::vector<Run>;
using Emit = std::function<void(const Seats&, const Line&)>;

Seats seats_of(const Runs& runs) {
  Seats seats;
  for (const Run& run : runs) seats.push_back(run.seat);
  return seats;
}

void align(Runs runs, const Emit& emit);

// No line is in all runs. Part those that share the most widely shared line from the rest, and align each part.
void part(const Runs& runs, const Emit& emit) {
  struct Count {
    size_t runs = 0;
    const Run* last = nullptr;
  };
  std::unordered_map<const Line*, Count> counts;
  const Line* shared = nullptr;
  size_t most = 1;
  for (const Run& run : runs) {
    for (const Line* line : run.lines) {
      Count& count = counts[line];
      if (std::exchange(count.last, &run) == &run || ++count.runs <= most) continue;
      most = count.runs;
      shared = line;
    }
  }
  if (shared == nullptr) {
    for (const Run& run : runs) {
      for (const Line* line : run.lines) emit({run.seat}, *line);
    }
    return;
  }
  Runs with, without;
  for (const Run& run : runs) {
    const bool has = std::find(run.lines.begin(), run.lines.end(), shared) != run.lines.end();
    (has ? with : without).push_back(run);
  }
  const bool with_first = std::pair(with.size(), with[0].seat) < std::pair(without.size(), without[0].seat);
  align(with_first ? with : without, emit);
  align(with_first ? without : with, emit);
}

// Finds, from one common line to the next, the nearest line that all runs have.
class Agreements {
 public:
  explicit Agreements(const Runs& runs) : runs_(runs), places_(runs.size()) {
    for (size_t k = 1; k < runs.size(); ++k) {
      for (size_t i = 0; i < runs[k].lines.size(); ++i) places_[k][runs[k].lines[i]].push_back(i);
    }
  }

  // The place in each run; nearest is the fewest lines skipped. Looks no farther than the best found, so that the
  // cost of all calls is linear in the lines they pass.
  std::optional<std::vector<size_t>> next(const std::vector<size_t>& from) const {
    std::optional<std::vector<size_t>> best;
    size_t best_cost = 0;
    for (size_t i = from[0]; i < runs_[0].lines.size() && (!best || i - from[0] < best_cost); ++i) {
      std::vector<size_t> place{i};
      size_t cost = i - from[0];
      for (size_t k = 1; k < runs_.size(); ++k) {
        const auto found = places_[k].find(runs_[0].lines[i]);
        if (found == places_[k].end()) break;
        const auto at = std::lower_bound(found->second.begin(), found->second.end(), from[k]);
        if (at == found->second.end()) break;
        place.push_back(*at);
        cost += *at - from[k];
      }
      if (place.size() < runs_.size() || (best && cost >= best_cost)) continue;
      best = std::move(place);
      best_cost = cost;
    }
    return best;
  }

 private:
  const Runs& runs_;
  std::vector<std::unordered_map<const Line*, std::vector<size_t>>> places_;
};

// Emits every line of every run, each rank's in order, equal lines together where the order allows.
void align(Runs runs, const Emit& emit) {
  std::erase_if(runs, [](const Run& run) { return run.lines.empty(); });
  if (runs.empty()) return;
  const Seats seats = seats_of(runs);
  const auto begins_like_first = [&](const Run& r) { return !r.lines.empty() && r.lines[0] == runs[0].lines[0]; };
  while (!runs[0].lines.empty() && std::all_of(runs.begin(), runs.end(), begins_like_first)) {
    emit(seats, *runs[0].lines[0]);
    for (Run& run : runs) run.lines = run.lines.subspan(1);
  }
  if (std::any_of(runs.begin(), runs.end(), [](const Run& run) { return run.lines.empty(); })) {
    return align(std::move(runs), emit);
  }

  const Agreements agreements(runs);
  std::vector<size_t> from(runs.size(), 0);
  bool any = false;
  const auto stretch = [&](const std::vector<size_t>* to) {
    Runs between;
    for (size_t k = 0; k < runs.size(); ++k) {
      const size_t end = to != nullptr ? (*to)[k] : runs[k].lines.size();
      if (end > from[k]) between.push_back({runs[k].seat, runs[k].lines.subspan(from[k], end - from[k])});
    }
    return between;
  };
  while (const auto place = agreements.next(from)) {
    align(stretch(&*place), emit);
    emit(seats, *runs[0].lines[(*place)[0]]);
    for (size_t k = 0; k < runs.size(); ++k) from[k] = (*place)[k] + 1;
    any = true;
  }
  any ? align(stretch(nullptr), emit) : part(runs, emit);
}

std::vector<int> sorted(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string elision_marker(size_t lines) { return fmt::format("… {} lines elided (%diplog)\n", lines); }

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
  std::string list;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!list.empty()) list += ',';
    list += std::to_string(ranks[i]);
    if (last > i) list += '-' + std::to_string(ranks[last]);
    i = last + 1;
  }
  return list;
}

// ---- One stream ----------------------------------------------------------------------------------------------------

class Difference::Lane {
 public:
  // The lines of one rank that are not decided. Those before 'expired' waited long enough and are shown; of them
  // those before 'printed' were given out by take_text().
  struct Said {
    Line* line;
    Time at;
  };
  struct Queue {
    Terminal terminal;
    std::deque<Said> said;
    size_t expired = 0;
    size_t printed = 0;
    bool closed = false;
  };
  // A line of these seats is decided; of them the fresh ones were not printed yet.
  using Decided = std::function<void(const Seats& seats, const Seats& fresh, const std::string& text)>;

  Lane(Stream s, size_t seats, const Options& options, Decided decided)
      : stream(s), queues(seats), options_(options), decided_(std::move(decided)) {}

  void say(size_t seat, std::string text, Time now) {
    Line& line = *table_.try_emplace(std::move(text), queues.size()).first;
    if (line.second.total++ == 0) waiting_ += cost(line);
    ++line.second.times[seat];
    waiting_ += sizeof(Said);
    queues[seat].said.push_back({&line, now});
    // No other line can have become common: before this one, none was.
    if (all_have(line)) {
      agree_on(line);
      if (any_closed()) agree();
    }
    if (waiting_ > kMaxWaiting) decide_oldest(longest(), (queues[longest()].said.size() + 1) / 2);
  }

  void close(size_t seat) {
    queues[seat].closed = true;
    if (std::all_of(queues.begin(), queues.end(), is_closed)) {
      decide(counts([](const Queue& queue) { return queue.said.size(); }));
    } else {
      agree();
    }
  }

  void advance(Time now) {
    bool ran_out = false;
    for (Queue& queue : queues) {
      const size_t before = queue.expired;
      const auto& said = queue.said;
      while (queue.expired < said.size() && said[queue.expired].at + options_.patience <= now) ++queue.expired;
      if (queue.expired == before) continue;
      moved = true;
      if (queue.closed && queue.expired == queue.said.size()) ran_out = true;
    }
    if (ran_out) agree();
    for (size_t seat = 0; seat < queues.size(); ++seat) {
      const size_t expired = queues[seat].expired;
      if (expired > options_.window) decide_oldest(seat, expired - options_.window / 2);
    }
  }

  std::optional<Time> deadline() const {
    std::optional<Time> first;
    for (const Queue& queue : queues) {
      if (queue.expired == queue.said.size()) continue;
      const Time at = queue.said[queue.expired].at + options_.patience;
      if (!first || at < *first) first = at;
    }
    return first;
  }

  // The lines that are shown without being decided.
  void align_shown(const Emit& emit) const {
    align_between(Seats(queues.size(), 0), counts([](const Queue& queue) { return queue.expired; }), emit);
  }
  void align_unprinted(const Emit& emit) {
    align_between(counts([](const Queue& queue) { return queue.printed; }),
                  counts([](const Queue& queue) { return queue.expired; }), emit);
    for (Queue& queue : queues) queue.printed = queue.expired;
  }

  const Stream stream;
  std::vector<Queue> queues;  // by seat
  bool moved = false;         // align_shown() may have something else to say; the reader sets it back

 private:
  static size_t cost(const Line& line) {
    return sizeof(Line) + line.first.size() + line.second.times.size() * sizeof(line.second.times[0]);
  }
  static bool is_closed(const Queue& queue) { return queue.closed; }
  bool any_closed() const { return std::any_of(queues.begin(), queues.end(), is_closed); }

  // Open ranks, and closed ones while others may be about to say the lines they said last.
  static bool awaited(const Queue& queue) { return !queue.closed || queue.expired < queue.said.size(); }

  bool all_have(const Line& line) const {
    for (size_t seat = 0; seat < queues.size(); ++seat) {
      if (line.second.times[seat] == 0 && awaited(queues[seat])) return false;
    }
    return true;
  }

  template <class Count>
  std::vector<size_t> counts(Count count) const {
    std::vector<size_t> result;
    for (const Queue& queue : queues) result.push_back(count(queue));
    return result;
  }

  size_t longest() const {
    const auto shorter = [](const Queue& a, const Queue& b) { return a.said.size() < b.said.size(); };
    return static_cast<size_t>(std::max_element(queues.begin(), queues.end(), shorter) - queues.begin());
  }

  // All awaited ranks have the line: decide it, and before it what each of its ranks said up to there.
  void agree_on(const Line& line) {
    std::vector<size_t> before(queues.size(), 0);
    Seats seats, fresh;
    bool differs = false;
    for (size_t seat = 0; seat < queues.size(); ++seat) {
      if (line.second.times[seat] == 0) continue;
      seats.push_back(seat);
      const auto& said = queues[seat].said;
      while (said[before[seat]].line != &line) ++before[seat];
      if (before[seat] > 0) differs = true;
    }
    if (differs) decide(before);
    for (const size_t seat : seats) {
      if (queues[seat].printed == 0) fresh.push_back(seat);
    }
    decided_(seats, fresh, line.first);
    for (const size_t seat : seats) pop(seat, 1);
    moved = true;
  }

  // Fewer ranks are awaited than before: there may be agreement among the lines that are there.
  void agree() {
    for (;;) {
      const Queue* shortest = nullptr;
      for (const Queue& queue : queues) {
        if (awaited(queue) && (shortest == nullptr || queue.said.size() < shortest->said.size())) shortest = &queue;
      }
      if (shortest == nullptr) return;
      const auto& said = shortest->said;
      const auto found = std::find_if(said.begin(), said.end(), [&](const Said& one) { return all_have(*one.line); });
      if (found == said.end()) return;
      agree_on(*found->line);
    }
  }

  // The first 'count' lines of a seat, and what the others said until then.
  void decide_oldest(size_t seat, size_t count) {
    const Time until = queues[seat].said[count - 1].at;
    decide(counts([&](const Queue& queue) {
      size_t n = 0;
      while (n < queue.said.size() && (queue.said[n].at < until || (queue.said[n].at == until && n < count))) ++n;
      return &queue == &queues[seat] ? count : n;
    }));
  }

  void decide(const std::vector<size_t>& first) {
    std::vector<size_t> taken(queues.size(), 0);
    Seats fresh;
    align_between(Seats(queues.size(), 0), first, [&](const Seats& seats, const Line& line) {
      fresh.clear();
      for (const size_t seat : seats) {
        if (taken[seat]++ >= queues[seat].printed) fresh.push_back(seat);
      }
      decided_(seats, fresh, line.first);
    });
    for (size_t seat = 0; seat < queues.size(); ++seat) pop(seat, first[seat]);
    moved = true;
  }

  void pop(size_t seat, size_t count) {
    Queue& queue = queues[seat];
    for (size_t i = 0; i < count; ++i) {
      Line& line = *queue.said.front().line;
      queue.said.pop_front();
      waiting_ -= sizeof(Said);
      --line.second.times[seat];
      if (--line.second.total > 0) continue;
      waiting_ -= cost(line);
      table_.erase(table_.find(line.first));
    }
    queue.expired -= std::min(queue.expired, count);
    queue.printed -= std::min(queue.printed, count);
  }

  void align_between(const std::vector<size_t>& from, const std::vector<size_t>& to, const Emit& emit) const {
    std::vector<std::vector<Line*>> lines(queues.size());
    Runs runs;
    for (size_t seat = 0; seat < queues.size(); ++seat) {
      for (size_t i = from[seat]; i < to[seat]; ++i) lines[seat].push_back(queues[seat].said[i].line);
      runs.push_back({seat, lines[seat]});
    }
    align(std::move(runs), emit);
  }

  const Options& options_;
  const Decided decided_;
  Table table_;
  size_t waiting_ = 0;  // bytes of table and queues
};

// ---- The display that is rendered anew -----------------------------------------------------------------------------

// Final blocks, then the tail: lines shown but not decided, drawn anew at each change.
struct Difference::Display {
  Display(std::vector<int> ranks, size_t lines) : all_ranks(std::move(ranks)), max_lines(lines) {}

  void add(std::vector<int> ranks, Stream stream, const std::string& text) {
    if (blocks.empty() || blocks.back().elided > 0 || blocks.back().stream != stream || blocks.back().ranks != ranks) {
      blocks.push_back({std::move(ranks), stream, "", 0});
      ends.emplace_back();
    }
    blocks.back().text += text;
    ends.back().push_back(blocks.back().text.size());
    changed = std::min(changed, blocks.size() - 1);
  }

  void add_final(std::vector<int> ranks, Stream stream, const std::string& text) {
    drop_tail();
    add(std::move(ranks), stream, text);
    ++final_lines;
    seal();
    elide();
  }

  void seal() {
    final_blocks = blocks.size();
    final_in_last = blocks.empty() ? 0 : ends.back().size();
  }

  void drop_tail() {
    if (blocks.size() > final_blocks) changed = std::min(changed, final_blocks);
    blocks.resize(final_blocks);
    ends.resize(final_blocks);
    if (blocks.empty() || ends.back().size() == final_in_last) return;
    ends.back().resize(final_in_last);
    blocks.back().text.resize(final_in_last > 0 ? ends.back().back() : 0);
    changed = std::min(changed, final_blocks - 1);
  }

  // Keeps half of max_lines at the beginning and a quarter to a half at the end, so that the cost per line is constant.
  void elide() {
    if (max_lines == 0) return;
    if (!marker) {
      if (final_lines <= max_lines) return;
      place_marker();
    }
    const size_t behind = final_lines - head_lines;
    if (behind <= max_lines / 2) return;
    remove_behind_marker(behind - max_lines / 4);
    changed = std::min(changed, *marker);
    seal();
  }

  // Splits the display after max_lines / 2 lines.
  void place_marker() {
    head_lines = max_lines / 2;
    changed = 0;  // once per display; the block that is split keeps its index and loses its end
    size_t index = 0;
    size_t left = head_lines;
    while (left >= ends[index].size()) left -= ends[index++].size();
    if (left > 0) {
      Block rest = blocks[index];
      const size_t cut = ends[index][left - 1];
      rest.text.erase(0, cut);
      std::vector<size_t> rest_ends(ends[index].begin() + static_cast<long>(left), ends[index].end());
      for (size_t& end : rest_ends) end -= cut;
      blocks[index].text.resize(cut);
      ends[index].resize(left);
      ++index;
      blocks.insert(blocks.begin() + static_cast<long>(index), std::move(rest));
      ends.insert(ends.begin() + static_cast<long>(index), std::move(rest_ends));
    }
    blocks.insert(blocks.begin() + static_cast<long>(index), Block{all_ranks, Stream::out, "", 0});
    ends.insert(ends.begin() + static_cast<long>(index), std::vector<size_t>());
    marker = index;
  }

  void remove_behind_marker(size_t lines) {
    final_lines -= lines;
    Block& sign = blocks[*marker];
    sign.elided += lines;
    sign.text = elision_marker(sign.elided);
    const size_t first = *marker + 1;
    size_t whole = first;
    while (lines > 0 && lines >= ends[whole].size()) lines -= ends[whole++].size();
    if (lines > 0) {
      const size_t cut = ends[whole][lines - 1];
      blocks[whole].text.erase(0, cut);
      ends[whole].erase(ends[whole].begin(), ends[whole].begin() + static_cast<long>(lines));
      for (size_t& end : ends[whole]) end -= cut;
    }
    blocks.erase(blocks.begin() + static_cast<long>(first), blocks.begin() + static_cast<long>(whole));
    ends.erase(ends.begin() + static_cast<long>(first), ends.begin() + static_cast<long>(whole));
  }

  const std::vector<int> all_ranks;
  const size_t max_lines;
  std::vector<Block> blocks;
  std::vector<std::vector<size_t>> ends;  // per block, where each of its lines ends in the text
  size_t final_blocks = 0;
  size_t final_in_last = 0;  // lines of the last final block; the tail may have added to it
  size_t final_lines = 0;
  size_t head_lines = 0;
  std::optional<size_t> marker;
  size_t changed = 0;
};

// ---- The display that only grows -----------------------------------------------------------------------------------

struct Difference::Transcript {
  void add(const std::string& label, Stream stream, const std::string& line, size_t max_lines) {
    if (max_lines > 0 && lines >= max_lines) {
      ++elided;
      return;
    }
    ++lines;
    const bool goes_on = unended && last_label == label && last_stream == stream;
    if (unended && !goes_on) piece(last_stream) += '\n';
    std::string& text = piece(stream);
    if (!goes_on) text += label;
    text += line;
    unended = line.back() != '\n';
    last_label = label;
    last_stream = stream;
  }

  std::vector<Text> take() {
    if (elided > 0) {
      if (unended) piece(last_stream) += '\n';
      piece(last_stream) += elision_marker(elided);
      unended = false;
    }
    elided = 0;
    lines = 0;
    return std::exchange(texts, {});
  }

  std::string& piece(Stream stream) {
    if (texts.empty() || texts.back().stream != stream) texts.push_back({stream, ""});
    return texts.back().text;
  }

  std::vector<Text> texts;
  size_t lines = 0;
  size_t elided = 0;
  bool unended = false;  // the last line given out has no '\n' yet
  std::string last_label;
  Stream last_stream = Stream::out;
};

// ---- Difference ----------------------------------------------------------------------------------------------------

Difference::Difference(std::vector<int> ranks, Options options)
    : ranks_(sorted(std::move(ranks))), options_(options), closed_(ranks_.size(), false) {
  if (ranks_.empty()) throw ConfigError("output by difference: no rank to show; choose at least one");
  display_ = std::make_unique<Display>(ranks_, options_.max_lines);
  transcript_ = std::make_unique<Transcript>();
  for (const Stream stream : {Stream::out, Stream::err}) {
    const auto decided = [this, stream](const Seats& seats, const Seats& fresh, const std::string& text) {
      if (options_.form == Form::rerender) display_->add_final(ranks_of(seats), stream, text);
      if (options_.form == Form::append && !fresh.empty()) print(stream, fresh, text);
    };
    lanes_.push_back(std::make_unique<Lane>(stream, ranks_.size(), options_, decided));
  }
}

Difference::~Difference() = default;

void Difference::write(int rank, Stream stream, std::string_view bytes, Time now) {
  advance(now);
  const auto seat = seat_of(rank);
  if (!seat || bytes.empty()) return;
  closed_[*seat] = false;
  for (const auto& each : lanes_) each->queues[*seat].closed = false;
  Lane& said_on = lane(stream);
  said_on.queues[*seat].terminal.write(bytes);
  say_settled(said_on, *seat);
}

void Difference::close(int rank, Time now) {
  advance(now);
  const auto seat = seat_of(rank);
  if (!seat || closed_[*seat]) return;
  closed_[*seat] = true;
  for (const auto& each : lanes_) {
    each->queues[*seat].terminal.finish();
    say_settled(*each, *seat);
    each->close(*seat);
  }
}

void Difference::advance(Time now) {
  now_ = std::max(now_, now);
  for (const auto& each : lanes_) each->advance(now_);
}

std::optional<Difference::Time> Difference::deadline() const {
  const auto out = lanes_[0]->deadline();
  const auto err = lanes_[1]->deadline();
  return out && err ? std::min(out, err) : out ? out : err;
}

const std::vector<Block>& Difference::blocks() {
  if (options_.form == Form::rerender && (lanes_[0]->moved || lanes_[1]->moved)) {
    display_->drop_tail();
    for (const auto& each : lanes_) {
      each->moved = false;
      each->align_shown(
          [&](const Seats& seats, const Line& line) { display_->add(ranks_of(seats), each->stream, line.first); });
    }
  }
  return display_->blocks;
}

size_t Difference::first_changed() {
  const size_t size = blocks().size();
  return std::min(std::exchange(display_->changed, size), size);
}

std::vector<Text> Difference::take_text(Time now) {
  advance(now);
  if (options_.form != Form::append) return {};
  for (const auto& each : lanes_) {
    each->align_unprinted([&](const Seats& seats, const Line& line) { print(each->stream, seats, line.first); });
  }
  return transcript_->take();
}

std::map<int, std::vector<std::string>> Difference::bars() const {
  std::map<int, std::vector<std::string>> bars;
  for (size_t seat = 0; seat < ranks_.size(); ++seat) {
    for (const auto& each : lanes_) {
      for (auto& line : each->queues[seat].terminal.live()) bars[ranks_[seat]].push_back(std::move(line));
    }
  }
  return bars;
}

std::optional<size_t> Difference::seat_of(int rank) const {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end() || *found != rank) return std::nullopt;
  return static_cast<size_t>(found - ranks_.begin());
}

Difference::Lane& Difference::lane(Stream stream) const { return *lanes_[stream == Stream::err ? 1 : 0]; }

bool Difference::repeats_a_bar(size_t seat) const {
  if (options_.bars == Bars::every) return false;
  for (const auto& each : lanes_) {
    for (size_t lower = 0; lower < seat; ++lower) {
      if (each->queues[lower].terminal.drew_bar()) return true;
    }
  }
  return false;
}

void Difference::say_settled(Lane& said_on, size_t seat) {
  for (auto& line : said_on.queues[seat].terminal.take_settled()) {
    if (line.bar && repeats_a_bar(seat)) continue;
    said_on.say(seat, std::move(line.text), now_);
  }
}

void Difference::print(Stream stream, const std::vector<size_t>& seats, const std::string& line) {
  const std::string label = seats.size() == ranks_.size() ? "" : "[" + rank_list(ranks_of(seats)) + "] ";
  transcript_->add(label, stream, line, options_.max_lines);
}

std::vector<int> Difference::ranks_of(const std::vector<size_t>& seats) const {
  std::vector<int> ranks;
  for (const size_t seat : seats) ranks.push_back(ranks_[seat]);
  return ranks;
}

}  // namespace ddip::client
