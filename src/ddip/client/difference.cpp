#include "ddip/client/difference.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/client/difference_display.h"
#include "ddip/client/difference_lane.h"
#include "ddip/client/terminal.h"

namespace ddip::client {
namespace {

constexpr std::array kStreams = {Stream::out, Stream::err};

size_t index_of(Stream stream) { return stream == Stream::err ? 1 : 0; }

std::vector<int> sorted(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

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

struct Difference::Rank {
  std::array<Terminal, kStreams.size()> terminals;  // out, err
  bool closed = false;
};

Difference::Difference(std::vector<int> ranks, Options options)
    : ranks_(sorted(std::move(ranks))), options_(options), said_(ranks_.size()) {
  if (ranks_.empty()) throw ConfigError("output by difference: no rank to show; choose at least one");
  display_ = std::make_unique<BlockDisplay>(ranks_, options_.max_lines);
  transcript_ = std::make_unique<Transcript>(options_.max_lines);
  lane_ = std::make_unique<Lane>(ranks_.size(), options_,
                                 [this](const Seats& seats, const Seats& fresh, const Words& words) {
                                   if (options_.form == Form::rerender && is_shown(seats, words))
                                     display_->add_final(ranks_of(seats), words.stream, words.text);
                                   if (options_.form == Form::append && !fresh.empty()) print(fresh, words);
                                 });
}

Difference::~Difference() = default;

void Difference::write(int rank, Stream stream, std::string_view bytes, Time now) {
  advance(now);
  const auto seat = seat_of(rank);
  if (!seat || bytes.empty()) return;
  said_[*seat].closed = false;
  lane_->reopen(*seat);
  said_[*seat].terminals[index_of(stream)].write(bytes);
  say_settled(*seat, stream);
}

void Difference::close(int rank, Time now) {
  advance(now);
  const auto seat = seat_of(rank);
  if (!seat || said_[*seat].closed) return;
  said_[*seat].closed = true;
  for (const Stream stream : kStreams) say_finished_bars(*seat, stream);
  for (const Stream stream : kStreams) {
    said_[*seat].terminals[index_of(stream)].finish();
    say_settled(*seat, stream);
  }
  lane_->close(*seat);
}

void Difference::advance(Time now) {
  now_ = std::max(now_, now);
  lane_->advance(now_);
}

std::optional<Difference::Time> Difference::deadline() const { return lane_->deadline(); }

const std::vector<Block>& Difference::blocks() {
  if (options_.form == Form::rerender && lane_->take_moved()) {
    display_->drop_tail();
    lane_->align_shown([&](const Seats& seats, const Line& line) {
      const Words& words = line.first;
      if (is_shown(seats, words)) display_->add_to_tail(ranks_of(seats), words.stream, words.text);
    });
  }
  return display_->blocks();
}

size_t Difference::first_changed() {
  blocks();
  return display_->take_first_changed();
}

std::vector<Text> Difference::take_text(Time now) {
  advance(now);
  if (options_.form != Form::append) return {};
  lane_->align_unprinted([&](const Seats& seats, const Line& line) { print(seats, line.first); });
  return transcript_->take();
}

std::map<int, std::vector<std::string>> Difference::bars() const {
  std::map<int, std::vector<std::string>> bars;
  for (size_t seat = 0; seat < ranks_.size(); ++seat) {
    for (const Terminal& terminal : said_[seat].terminals) {
      if (terminal.drew_bar() && is_behind_another_bar(seat)) continue;
      for (auto& line : terminal.live()) bars[ranks_[seat]].push_back(std::move(line));
    }
  }
  return bars;
}

std::optional<size_t> Difference::seat_of(int rank) const {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end() || *found != rank) return std::nullopt;
  return static_cast<size_t>(found - ranks_.begin());
}

// A lower rank draws bars too, or did: one that is done with its bar does not hand the place to a slower rank.
bool Difference::is_behind_another_bar(size_t seat) const {
  if (options_.bars == Bars::every) return false;
  for (size_t lower = 0; lower < seat; ++lower) {
    for (const Terminal& terminal : said_[lower].terminals) {
      if (terminal.drew_bar()) return true;
    }
  }
  return false;
}

// Asked when the line is shown, not when it is said: a higher rank may be done with its bar before a lower one begins.
bool Difference::is_shown(const std::vector<size_t>& seats, const Words& words) const {
  return !words.bar || !is_behind_another_bar(seats[0]);
}

void Difference::say_settled(size_t seat, Stream stream) {
  auto lines = said_[seat].terminals[index_of(stream)].take_settled();
  if (!lines.empty()) say_finished_bars(seat, stream == Stream::out ? Stream::err : Stream::out);
  for (auto& line : lines) lane_->say(seat, {stream, line.bar, std::move(line.text)}, now_);
}

void Difference::say_finished_bars(size_t seat, Stream stream) {
  Terminal& terminal = said_[seat].terminals[index_of(stream)];
  terminal.settle_above();
  for (auto& line : terminal.take_settled()) lane_->say(seat, {stream, line.bar, std::move(line.text)}, now_);
}

void Difference::print(const std::vector<size_t>& seats, const Words& words) {
  if (!is_shown(seats, words)) return;
  const std::string label = seats.size() == ranks_.size() ? "" : "[" + rank_list(ranks_of(seats)) + "] ";
  transcript_->add(label, words.stream, words.text);
}

std::vector<int> Difference::ranks_of(const std::vector<size_t>& seats) const {
  std::vector<int> ranks;
  for (const size_t seat : seats) ranks.push_back(ranks_[seat]);
  return ranks;
}

}  // namespace ddip::client
