// Lines of several ranks side by side: equal ones together, each rank's in order. Private to output by difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace ddip::client {

using Seats = std::vector<size_t>;  // places of ranks among those that are shown

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

// Emits every line of every run, each rank's in order, equal lines together where the order allows. Ranks that have no
// line in common come apart: a smaller set of ranks first, equal sets in rank order.
void align(Runs runs, const Emit& emit);

}  // namespace ddip::client
