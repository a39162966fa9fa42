#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "ddip/coordinator/request_table.h"

namespace ddip::coordinator {

// Cells are asked for, ranks end and die, endings come twice, late, for ranks and cells that are not there. Whatever
// the order: each (cell, rank) is settled exactly once, and a cell is finished exactly when its last rank is.
RC_GTEST_PROP(RequestTableProperty, every_rank_of_every_cell_ends_exactly_once, ()) {
  constexpr int kWorld = 4;
  RequestTable table;
  std::map<uint64_t, std::set<int>> open;  // what a plain model says
  std::map<std::pair<uint64_t, int>, int> endings;
  auto settle = [&](uint64_t cell, int rank) {
    bool expected = open.contains(cell) && open.at(cell).contains(rank);
    RC_ASSERT(table.settle(cell, rank) == expected);
    if (!expected) return;
    RC_ASSERT(++endings[std::make_pair(cell, rank)] == 1);
    open.at(cell).erase(rank);
    RC_ASSERT(table.finished(cell) == open.at(cell).empty());
    if (open.at(cell).empty()) {
      table.forget(cell);
      open.erase(cell);
    }
  };
  uint64_t asked = 0;
  size_t expected_endings = 0;
  for (int steps = *rc::gen::inRange(0, 200); steps > 0; --steps) {
    switch (*rc::gen::inRange(0, 4)) {
      case 0: {  // a client asks
        Request request;
        int chosen = *rc::gen::inRange(1, 1 << kWorld);
        for (int rank = 0; rank < kWorld; ++rank) {
          if (chosen & 1 << rank) request.ranks.push_back(rank);
        }
        open[++asked] = std::set<int>(request.ranks.begin(), request.ranks.end());
        expected_endings += request.ranks.size();
        RC_ASSERT(table.open(request).cell == asked);
        break;
      }
      case 1: {  // a rank is lost, and with it all that waited for it
        int rank = *rc::gen::inRange(0, kWorld);
        std::vector<uint64_t> cells = table.unfinished_on(rank);
        for (const auto& [cell, ranks] : open) {
          RC_ASSERT((std::find(cells.begin(), cells.end(), cell) != cells.end()) == ranks.contains(rank));
        }
        for (uint64_t cell : cells) settle(cell, rank);
        break;
      }
      default:  // some ending: usual, doubled, stray
        settle(*rc::gen::inRange<uint64_t>(0, asked + 2), *rc::gen::inRange(-1, kWorld + 1));
    }
    RC_ASSERT(table.size() == open.size());
  }
  for (int rank = 0; rank < kWorld; ++rank) {
    for (uint64_t cell : table.unfinished_on(rank)) settle(cell, rank);
  }
  RC_ASSERT(table.size() == 0u);
  RC_ASSERT(endings.size() == expected_endings);
}

}  // namespace ddip::coordinator
