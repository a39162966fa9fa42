#include "ddip/coordinator/request_table.h"

#include <gtest/gtest.h>

namespace ddip::coordinator {
namespace {

Request on(std::vector<int> ranks) {
  Request request;
  request.ranks = std::move(ranks);
  return request;
}

}  // namespace

TEST(RequestTable, cells_are_numbered_from_one_and_never_again) {
  RequestTable table;
  EXPECT_EQ(table.open(on({0})).cell, 1u);
  EXPECT_EQ(table.open(on({0})).cell, 2u);
  table.forget(2);
  EXPECT_EQ(table.open(on({0})).cell, 3u);
}

TEST(RequestTable, first_ending_wins) {
  RequestTable table;
  uint64_t cell = table.open(on({0, 2})).cell;
  EXPECT_TRUE(table.settle(cell, 0));
  EXPECT_FALSE(table.settle(cell, 0));
  EXPECT_FALSE(table.finished(cell));
  EXPECT_TRUE(table.settle(cell, 2));
  EXPECT_TRUE(table.finished(cell));
}

TEST(RequestTable, ending_that_nobody_waits_for_is_refused) {
  RequestTable table;
  uint64_t cell = table.open(on({0, 2})).cell;
  EXPECT_FALSE(table.settle(cell, 1)) << "not one of its ranks";
  EXPECT_FALSE(table.settle(cell, -1));
  EXPECT_FALSE(table.settle(cell + 1, 0)) << "no such cell";
  table.settle(cell, 0);
  table.settle(cell, 2);
  table.forget(cell);
  EXPECT_FALSE(table.settle(cell, 0)) << "long over";
  EXPECT_FALSE(table.finished(cell));
  EXPECT_EQ(table.find(cell), nullptr);
}

TEST(RequestTable, rank_named_twice_ends_once) {
  RequestTable table;
  uint64_t cell = table.open(on({1, 1})).cell;
  EXPECT_TRUE(table.settle(cell, 1));
  EXPECT_TRUE(table.finished(cell));
}

TEST(RequestTable, unfinished_are_listed_in_order_and_by_rank) {
  RequestTable table;
  uint64_t first = table.open(on({0, 1})).cell;
  uint64_t second = table.open(on({1})).cell;
  EXPECT_EQ(table.unfinished(), (std::vector<uint64_t>{first, second}));
  EXPECT_EQ(table.unfinished_on(1), (std::vector<uint64_t>{first, second}));
  EXPECT_EQ(table.unfinished_on(0), std::vector<uint64_t>{first});
  table.settle(first, 1);
  EXPECT_EQ(table.unfinished_on(1), std::vector<uint64_t>{second});
  EXPECT_EQ(table.unfinished_on(7), std::vector<uint64_t>{});
}

TEST(RequestTable, found_request_stays_where_it_is_while_others_come_and_go) {
  RequestTable table;
  Request* first = &table.open(on({0}));
  for (int count = 0; count < 1000; ++count) table.open(on({0}));
  for (uint64_t cell = 2; cell < 900; ++cell) table.forget(cell);
  EXPECT_EQ(table.find(1), first);
}

}  // namespace ddip::coordinator
