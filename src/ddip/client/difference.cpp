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
  for (const Stream stream : kStreams) {
    const auto decided = [this, stream](const Seats& seats, const Seats& fresh, const std::string& text) {
      if (options_.form == Form::rerender) display_->add_final(ranks_of(seats), stream, text);
      if (options_.form == Form::append && !fresh.empty()) print(stream, fresh, text);
    };
    lanes_.push_back(std::make_unique<Lane>(ranks_.size(), options_, decided));
  }
}

Difference::~Difference() = default;

void Difference::write(int rank, Stream stream, std::string_view bytes, Time now) {
  advance(now);
  const auto seat = seat_of(rank);
  if (!seat || bytes.empty()) return;
  said_[*seat].closed = false;
  for (const auto& lane : lanes_) lane->reopen(*seat);
  said_[*seat].terminals[index_of(stream)].write(bytes);
  say_settled(*seat, stream);
}

void Difference::close(int rank, Time now) {
  advance(now);
  const auto seat = seat_of(rank);
  if (!seat || said_[*seat].closed) return;
  said_[*seat].closed = true;
  for (const Stream stream : kStreams) {
    said_[*seat].terminals[index_of(stream)].finish();
    say_settled(*seat, stream);
    lanes_[index_of(stream)]->close(*seat);
  }
}

void Difference::advance(Time now) {
  now_ = std::max(now_, now);
  for (const auto& lane : lanes_) lane->advance(now_);
}

std::optional<Difference::Time> Difference::deadline() const {
  const auto out = lanes_[0]->deadline();
  const auto err = lanes_[1]->deadline();
  return out && err ? std::min(out, err) : out ? out : err;
}

const std::vector<Block>& Difference::blocks() {
  const bool moved = lanes_[0]->take_moved() | lanes_[1]->take_moved();
  if (options_.form == Form::rerender && moved) {
    display_->drop_tail();
    for (const Stream stream : kStreams) {
      lanes_[index_of(stream)]->align_shown(
          [&](const Seats& seats, const Line& line) { display_->add_to_tail(ranks_of(seats), stream, line.first); });
    }
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
  for (const Stream stream : kStreams) {
    lanes_[index_of(stream)]->align_unprinted(
        [&](const Seats& seats, const Line& line) { print(stream, seats, line.first); });
  }
  return transcript_->take();
}

std::map<int, std::vector<std::string>> Difference::bars() const {
  std::map<int, std::vector<std::string>> bars;
  for (size_t seat = 0; seat < ranks_.size(); ++seat) {
    for (const Terminal& terminal : said_[seat].terminals) {
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

bool Difference::repeats_a_bar(size_t seat) const {
  if (options_.bars == Bars::every) return false;
  for (size_t lower = 0; lower < seat; ++lower) {
    for (const Terminal& terminal : said_[lower].terminals) {
      if (terminal.drew_bar()) return true;
    }
  }
  return false;
}

void Difference::say_settled(size_t seat, Stream stream) {
  for (auto& line : said_[seat].terminals[index_of(stream)].take_settled()) {
    if (line.bar && repeats_a_bar(seat)) continue;
    lanes_[index_of(stream)]->say(seat, std::move(line.text), now_);
  }
}

void Difference::print(Stream stream, const std::vector<size_t>& seats, const std::string& line) {
  const std::string label = seats.size() == ranks_.size() ? "" : "[" + rank_list(ranks_of(seats)) + "] ";
  transcript_->add(label, stream, line);
}

std::vector<int> Difference::ranks_of(const std::vector<size_t>& seats) const {
  std::vector<int> ranks;
  for (const size_t seat : seats) ranks.push_back(ranks_[seat]);
  return ranks;
}

}  // namespace ddip::client
