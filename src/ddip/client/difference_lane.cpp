#include "ddip/client/difference_lane.h"

#include <algorithm>
#include <utility>

namespace ddip::client {
namespace {

size_t cost(const Line& line) {
  return sizeof(Line) + line.first.text.size() + line.second.times.size() * sizeof(line.second.times[0]);
}

}  // namespace

void Lane::say(size_t seat, Words words, Time now) {
  Line& line = *table_.try_emplace(std::move(words), queues_.size()).first;
  if (line.second.total++ == 0) waiting_ += cost(line);
  ++line.second.times[seat];
  waiting_ += sizeof(Said);
  queues_[seat].said.push_back({&line, now});
  // No other line can have become common: before this one, none was.
  if (all_have(line)) {
    agree_on(line);
    if (any_closed()) agree();
  }
  if (waiting_ > Difference::kMaxWaiting) decide_oldest(longest(), (queues_[longest()].said.size() + 1) / 2);
}

void Lane::close(size_t seat) {
  queues_[seat].closed = true;
  if (std::all_of(queues_.begin(), queues_.end(), is_closed)) {
    decide(counts([](const Queue& queue) { return queue.said.size(); }));
  } else {
    agree();
  }
}

void Lane::advance(Time now) {
  bool ran_out = false;
  for (Queue& queue : queues_) {
    const size_t before = queue.expired;
    const auto& said = queue.said;
    while (queue.expired < said.size() && said[queue.expired].at + options_.patience <= now) ++queue.expired;
    if (queue.expired == before) continue;
    moved_ = true;
    if (queue.closed && queue.expired == queue.said.size()) ran_out = true;
  }
  if (ran_out) agree();
  for (size_t seat = 0; seat < queues_.size(); ++seat) {
    const size_t expired = queues_[seat].expired;
    if (expired > options_.window) decide_oldest(seat, expired - options_.window / 2);
  }
}

std::optional<Lane::Time> Lane::deadline() const {
  std::optional<Time> first;
  for (const Queue& queue : queues_) {
    if (queue.expired == queue.said.size()) continue;
    const Time at = queue.said[queue.expired].at + options_.patience;
    if (!first || at < *first) first = at;
  }
  return first;
}

void Lane::align_shown(const Emit& emit) const {
  align_between(Seats(queues_.size(), 0), counts([](const Queue& queue) { return queue.expired; }), emit);
}

void Lane::align_unprinted(const Emit& emit) {
  align_between(counts([](const Queue& queue) { return queue.printed; }),
                counts([](const Queue& queue) { return queue.expired; }), emit);
  for (Queue& queue : queues_) queue.printed = queue.expired;
}

bool Lane::any_closed() const { return std::any_of(queues_.begin(), queues_.end(), is_closed); }

// Open ranks, and closed ones while others may be about to say the lines they said last.
bool Lane::awaited(const Queue& queue) { return !queue.closed || queue.expired < queue.said.size(); }

bool Lane::all_have(const Line& line) const {
  for (size_t seat = 0; seat < queues_.size(); ++seat) {
    if (line.second.times[seat] == 0 && awaited(queues_[seat])) return false;
  }
  return true;
}

template <class Count>
std::vector<size_t> Lane::counts(Count count) const {
  std::vector<size_t> result;
  for (const Queue& queue : queues_) result.push_back(count(queue));
  return result;
}

size_t Lane::longest() const {
  const auto shorter = [](const Queue& a, const Queue& b) { return a.said.size() < b.said.size(); };
  return static_cast<size_t>(std::max_element(queues_.begin(), queues_.end(), shorter) - queues_.begin());
}

// All awaited ranks have the line: decide it, and before it what each of its ranks said up to there.
void Lane::agree_on(const Line& line) {
  std::vector<size_t> before(queues_.size(), 0);
  Seats seats, fresh;
  bool differs = false;
  for (size_t seat = 0; seat < queues_.size(); ++seat) {
    if (line.second.times[seat] == 0) continue;
    seats.push_back(seat);
    const auto& said = queues_[seat].said;
    while (said[before[seat]].line != &line) ++before[seat];
    if (before[seat] > 0) differs = true;
  }
  if (differs) decide(before);
  for (const size_t seat : seats) {
    if (queues_[seat].printed == 0) fresh.push_back(seat);
  }
  decided_(seats, fresh, line.first);
  for (const size_t seat : seats) pop(seat, 1);
  moved_ = true;
}

// Fewer ranks are awaited than before: there may be agreement among the lines that are there.
void Lane::agree() {
  for (;;) {
    const Queue* shortest = nullptr;
    for (const Queue& queue : queues_) {
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
void Lane::decide_oldest(size_t seat, size_t count) {
  const Time until = queues_[seat].said[count - 1].at;
  decide(counts([&](const Queue& queue) {
    size_t n = 0;
    while (n < queue.said.size() && (queue.said[n].at < until || (queue.said[n].at == until && n < count))) ++n;
    return &queue == &queues_[seat] ? count : n;
  }));
}

void Lane::decide(const std::vector<size_t>& first) {
  std::vector<size_t> taken(queues_.size(), 0);
  Seats fresh;
  align_between(Seats(queues_.size(), 0), first, [&](const Seats& seats, const Line& line) {
    fresh.clear();
    for (const size_t seat : seats) {
      if (taken[seat]++ >= queues_[seat].printed) fresh.push_back(seat);
    }
    decided_(seats, fresh, line.first);
  });
  for (size_t seat = 0; seat < queues_.size(); ++seat) pop(seat, first[seat]);
  moved_ = true;
}

void Lane::pop(size_t seat, size_t count) {
  Queue& queue = queues_[seat];
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

void Lane::align_between(const std::vector<size_t>& from, const std::vector<size_t>& to, const Emit& emit) const {
  std::vector<std::vector<Line*>> lines(queues_.size());
  Runs runs;
  for (size_t seat = 0; seat < queues_.size(); ++seat) {
    for (size_t i = from[seat]; i < to[seat]; ++i) lines[seat].push_back(queues_[seat].said[i].line);
    runs.push_back({seat, lines[seat]});
  }
  align(std::move(runs), emit);
}

}  // namespace ddip::client
