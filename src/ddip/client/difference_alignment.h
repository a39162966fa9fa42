// Lines of several ranks side by side: equal ones together, each rank's in order. Private to output by difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ddip/client/difference.h"

namespace ddip::client {

using Seats = std::vector<size_t>;  // places of ranks among those that are shown

// What makes lines equal.
struct Words {
  Stream stream;
  bool bar;  // the last frame of one
  std::string text;
  bool operator==(const Words&) const = default;
};
struct HashOfWords {
  size_t operator()(const Words& words) const {
    return std::hash<std::string>()(words.text) ^ (static_cast<size_t>(words.stream) << 1 | words.bar);
  }
};

// Equal lines of all ranks are stored once, so that comparing lines is comparing addresses.
struct Holders {
  explicit Holders(size_t seats) : times(seats) {}
  std::vector<uint32_t> times;  // per seat, how often it is in the queue
  size_t total = 0;
};
using Table = std::unordered_map<Words, Holders, HashOfWords>;
using Line = Table::value_type;

// What one rank said, a stretch of it.
struct Run {
  size_t seat;
  std::span<Line* const> lines;
};
using Runs = std::vector<Run>;
using Emit = std::function<void(const Seats&, const Line&)>;

// Emits every line of every run, each rank's in order, equal lines together where the order allows. Ranks that have no
// line in common come apart: a smaller set of ranks first, equal sets in rank order.
void align(Runs runs, const Emit& emit);

}  // namespace ddip::client
