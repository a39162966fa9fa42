// What ranks said and is not yet decided: is a line common, or does it belong to some ranks? Private to
// output by difference; difference.h has the rules.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddip/client/difference.h"
#include "ddip/client/difference_alignment.h"

namespace ddip::client {

class Lane {
 public:
  using Time = Difference::Time;
  // A line of these seats is decided; of them the fresh ones were not printed yet.
  using Decided = std::function<void(const Seats& seats, const Seats& fresh, const Words& words)>;

  // `options` must outlive it.
  Lane(size_t seats, const Difference::Options& options, Decided decided)
      : options_(options), decided_(std::move(decided)), queues_(seats) {}

  void say(size_t seat, Words words, Time now);
  void close(size_t seat);
  void reopen(size_t seat) { queues_[seat].closed = false; }
  // Patience runs out.
  void advance(Time now);
  std::optional<Time> deadline() const;

  // The lines that are shown without being decided.
  void align_shown(const Emit& emit) const;
  // Those of them that were not given out yet.
  void align_unprinted(const Emit& emit);

  // Whether align_shown() may have something else to say than at the last call of this.
  bool take_moved() { return std::exchange(moved_, false); }

 private:
  struct Said {
    Line* line;
    Time at;
  };
  // The lines of one rank that are not decided. Those before 'expired' waited long enough and are shown; of them
  // those before 'printed' were given out by take_text().
  struct Queue {
    std::deque<Said> said;
    size_t expired = 0;
    size_t printed = 0;
    bool closed = false;
  };

  static bool is_closed(const Queue& queue) { return queue.closed; }
  static bool awaited(const Queue& queue);
  bool any_closed() const;
  bool all_have(const Line& line) const;
  size_t longest() const;
  template <class Count>
  std::vector<size_t> counts(Count count) const;

  void agree_on(const Line& line);
  void agree();
  void decide_oldest(size_t seat, size_t count);
  void decide(const std::vector<size_t>& first);
  void pop(size_t seat, size_t count);
  void align_between(const std::vector<size_t>& from, const std::vector<size_t>& to, const Emit& emit) const;

  const Difference::Options& options_;
  const Decided decided_;
  std::vector<Queue> queues_;  // by seat
  Table table_;
  size_t waiting_ = 0;  // bytes of table and queues
  bool moved_ = false;
};

}  // namespace ddip::client
