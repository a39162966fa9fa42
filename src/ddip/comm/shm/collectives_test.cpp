// Ranks are threads here, so that the thread sanitizer sees them; ranks_test.cpp has them as processes.
#include "ddip/comm/shm/collectives.h"

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <numeric>
#include <thread>

#include "ddip/base/error.h"

namespace ddip::comm::shm {
namespace {

using namespace std::chrono_literals;

constexpr size_t kArena = 1u << 20;  // so pieces are 128 KiB, and a test needs little to have many
constexpr size_t kPiece = kArena / 8;

// Runs `body` on every rank; the first error of each rank, empty if none.
std::vector<std::string> on_all(int world, const std::function<void(Collectives&)>& body,
                                std::chrono::milliseconds patience = 20s, size_t arena = kArena) {
  Segment segment = Segment::create(world, arena);
  std::vector<std::string> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Collectives ranks(segment, rank, patience);
        body(ranks);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void expect_well(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// What rank r holds at index i; different for every rank and index, exact in a float.
float value(int rank, size_t index) { return static_cast<float>((index * 7 + static_cast<size_t>(rank) * 31) % 1000); }
std::vector<float> values(int rank, size_t count) {
  std::vector<float> all(count);
  for (size_t index = 0; index < count; ++index) all[index] = value(rank, index);
  return all;
}
float sum_of(int world, size_t index) {
  float sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += value(rank, index);
  return sum;
}

class Worlds : public testing::TestWithParam<int> {
 protected:
  const int world = GetParam();
};

// None, one, odd ones, around the small limit, around a piece, many pieces.
const std::vector<size_t> kCounts = {0, 1, 3, 1000, 4096, 4097, kPiece / 4, kPiece / 4 + 1, 5 * kPiece / 4 + 77};

}  // namespace

INSTANTIATE_TEST_SUITE_P(of, Worlds, testing::Values(1, 2, 3, 4, 7), testing::PrintToStringParamName());

TEST_P(Worlds, all_reduce) {
  expect_well(on_all(world, [&](Collectives& ranks) {
    for (size_t count : kCounts) {
      std::vector<float> data = values(ranks.rank(), count);
      ranks.all_reduce(data.data(), count, {Element::f32});
      for (size_t index = 0; index < count; ++index) ASSERT_EQ(data[index], sum_of(world, index)) << count;
    }
  }));
}

TEST_P(Worlds, all_reduce_in_shared_memory_also_of_a_part_of_it) {
  expect_well(on_all(
      world,
      [&](Collectives& ranks) {
        constexpr size_t kCount = 10000;
        auto memory = ranks.allocate(kCount * sizeof(float)), little = ranks.allocate(sizeof(float));
        auto* data = reinterpret_cast<float*>(memory.get());
        auto* other = reinterpret_cast<float*>(little.get());
        for (int round = 0; round < 20; ++round) {
          for (size_t index = 0; index < kCount; ++index) data[index] = value(ranks.rank() + round, index);
          *other = 1;
          size_t begin = static_cast<size_t>(round) * 100;
          ranks.all_reduce(data + begin, kCount - 2 * begin, {Element::f32});
          ranks.all_reduce(other, 1, {Element::f32});
          for (size_t index = 0; index < kCount; ++index) {
            float expected = 0;
            for (int rank = 0; rank < world; ++rank) expected += value(rank + round, index);
            bool reduced = index >= begin && index < kCount - begin;
            ASSERT_EQ(data[index], reduced ? expected : value(ranks.rank() + round, index));
          }
          ASSERT_EQ(*other, static_cast<float>(world));
        }
      },
      20s, 4u << 20));
}

TEST_P(Worlds, reduce_leaves_the_others_as_they_were) {
  expect_well(on_all(world, [&](Collectives& ranks) {
    for (int root = 0; root < world; ++root) {
      for (size_t count : kCounts) {
        std::vector<float> data = values(ranks.rank(), count);
        ranks.reduce(data.data(), count, {Element::f32, Reduction::max}, root);
        for (size_t index = 0; index < count; ++index) {
          float most = 0;
          for (int rank = 0; rank < world; ++rank) most = std::max(most, value(rank, index));
          ASSERT_EQ(data[index], ranks.rank() == root ? most : value(ranks.rank(), index));
        }
      }
    }
  }));
}

TEST_P(Worlds, broadcast_from_every_root) {
  expect_well(on_all(world, [&](Collectives& ranks) {
    for (int root = 0; root < world; ++root) {
      for (size_t count : kCounts) {
        std::vector<float> data = values(ranks.rank(), count);
        ranks.broadcast(data.data(), count * sizeof(float), root);
        ASSERT_EQ(data, values(root, count));
      }
    }
  }));
}

TEST_P(Worlds, all_gather_gather_and_scatter) {
  expect_well(on_all(world, [&](Collectives& ranks) {
    for (size_t count : kCounts) {
      std::vector<float> expected;
      for (int rank = 0; rank < world; ++rank) {
        std::vector<float> part = values(rank, count);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      std::vector<float> mine = values(ranks.rank(), count);
      std::vector<float> all(expected.size(), -1);
      ranks.all_gather(mine.data(), all.data(), count * sizeof(float));
      ASSERT_EQ(all, expected);

      int root = static_cast<int>(count) % world;
      std::vector<float> untouched(expected.size(), -1);
      all = untouched;
      ranks.gather(mine.data(), ranks.rank() == root ? all.data() : nullptr, count * sizeof(float), root);
      ASSERT_EQ(all, ranks.rank() == root ? expected : untouched);

      std::vector<float> back(count, -1);
      ranks.scatter(ranks.rank() == root ? all.data() : nullptr, back.data(), count * sizeof(float), root);
      ASSERT_EQ(back, mine);
    }
  }));
}

TEST_P(Worlds, reduce_scatter) {
  expect_well(on_all(world, [&](Collectives& ranks) {
    for (size_t count : kCounts) {
      std::vector<float> all = values(ranks.rank(), count * static_cast<size_t>(world));
      std::vector<float> mine(count, -1);
      ranks.reduce_scatter(all.data(), mine.data(), count, {Element::f32});
      for (size_t index = 0; index < count; ++index)
        ASSERT_EQ(mine[index], sum_of(world, static_cast<size_t>(ranks.rank()) * count + index));
    }
  }));
}

TEST_P(Worlds, all_to_all_with_parts_of_any_size) {
  expect_well(on_all(world, [&](Collectives& ranks) {
    for (size_t unit : {size_t{0}, size_t{1}, size_t{1000}, kPiece / 8}) {
      auto size = [&](int from, int to) { return unit * static_cast<size_t>((from * 3 + to * 5) % 4); };
      std::vector<Part> to, from;
      std::vector<uint8_t> out, expected;
      for (int rank = 0; rank < world; ++rank) {
        to.push_back({out.size(), size(ranks.rank(), rank)});
        out.insert(out.end(), to.back().bytes, static_cast<uint8_t>(ranks.rank() * 16 + rank));
        from.push_back({expected.size(), size(rank, ranks.rank())});
        expected.insert(expected.end(), from.back().bytes, static_cast<uint8_t>(rank * 16 + ranks.rank()));
      }
      std::vector<uint8_t> in(expected.size());
      ranks.all_to_all(out.data(), to, in.data(), from);
      ASSERT_EQ(in, expected);
    }
  }));
}

// Each rank is slow at another time: pieces of one operation never mix with those of the next.
TEST_P(Worlds, operations_follow_each_other_without_mixing) {
  expect_well(on_all(world, [&](Collectives& ranks) {
    for (int round = 0; round < 200; ++round) {
      if (round % 11 == ranks.rank()) std::this_thread::sleep_for(200us);
      std::vector<float> data = values(ranks.rank() + round, 300 + static_cast<size_t>(round) * 40);
      switch (round % 3) {
        case 0: ranks.all_reduce(data.data(), data.size(), {Element::f32}); break;
        case 1: ranks.broadcast(data.data(), data.size() * sizeof(float), round % world); break;
        default: ranks.barrier();
      }
      for (size_t index = 0; index < data.size(); index += 97) {
        float expected = value(ranks.rank() + round, index);
        if (round % 3 == 0) {
          expected = 0;
          for (int rank = 0; rank < world; ++rank) expected += value(rank + round, index);
        } else if (round % 3 == 1) {
          expected = value(round % world + round, index);
        }
        ASSERT_EQ(data[index], expected) << "round " << round;
      }
    }
  }));
}

TEST(ShmCollectives, different_calls_are_an_error_on_every_rank_that_names_both) {
  auto errors = on_all(3, [](Collectives& ranks) {
    float data[4] = {};
    if (ranks.rank() == 1)
      ranks.barrier();
    else
      ranks.all_reduce(data, 4, {Element::f32});
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("all_reduce number 1 of 4 float32 (sum)"), std::string::npos) << error;
    EXPECT_NE(error.find("barrier number 1"), std::string::npos) << error;
  }
}

TEST(ShmCollectives, different_shapes_types_and_roots_are_errors_too_and_the_next_call_works) {
  auto refused = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const ConfigError&) {
      return true;
    }
    return false;
  };
  expect_well(on_all(2, [&](Collectives& ranks) {
    double data[8] = {};
    bool first = ranks.rank() == 0;
    EXPECT_TRUE(refused([&] { ranks.all_reduce(data, first ? 3 : 4, {Element::f32}); }));
    EXPECT_TRUE(refused([&] { ranks.all_reduce(data, 4, {first ? Element::f32 : Element::f64}); }));
    EXPECT_TRUE(refused([&] { ranks.all_reduce(data, 4, {Element::f32, first ? Reduction::min : Reduction::max}); }));
    EXPECT_TRUE(refused([&] { ranks.broadcast(data, 4, first ? 0 : 1); }));
    float one = 1;
    ranks.all_reduce(&one, 1, {Element::f32});
    EXPECT_EQ(one, 2);
  }));
}

TEST(ShmCollectives, requests_that_make_no_sense_are_refused_before_anybody_waits) {
  expect_well(on_all(2, [](Collectives& ranks) {
    int32_t data[2] = {};
    EXPECT_THROW(ranks.all_reduce(data, 2, {Element::i32, Reduction::mean}), ConfigError);
    EXPECT_THROW(ranks.broadcast(data, 4, 2), ConfigError);
    EXPECT_THROW(ranks.broadcast(data, 4, -1), ConfigError);
    EXPECT_THROW(ranks.allocate(size_t{1} << 62), ConfigError);
    ranks.barrier();
  }));
}

TEST(ShmCollectives, shared_memory_goes_with_its_holder_and_its_place_is_told_from_the_next) {
  auto errors = on_all(2, [](Collectives& ranks) {
    constexpr size_t kCount = 100000;
    for (int round = 0; round < 3000; ++round) ranks.allocate(kCount * 4);  // 2.4 GB of addresses, if they stayed
    auto first = ranks.allocate(kCount * 4), second = ranks.allocate(kCount * 4);
    ranks.all_reduce((ranks.rank() == 0 ? first : second).get(), kCount, {Element::f32});
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("same calls"), std::string::npos) << error;
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) EXPECT_EQ(line.find("ddip-slab"), std::string::npos) << line;
}

TEST(ShmCollectives, who_does_not_come_is_named_after_the_deadline) {
  auto errors = on_all(
      3,
      [](Collectives& ranks) {
        float data = 0;
        ranks.barrier();
        if (ranks.rank() != 2) ranks.all_reduce(&data, 1, {Element::f32});
      },
      100ms);
  for (size_t rank : {0u, 1u}) {
    EXPECT_NE(errors[rank].find("all_reduce number 2"), std::string::npos) << errors[rank];
    EXPECT_NE(errors[rank].find("for rank 2, whose last call is barrier number 1"), std::string::npos) << errors[rank];
  }
  EXPECT_EQ(errors[2], "");
}

TEST(ShmCollectives, parts_that_do_not_fit_are_an_error_and_nobody_waits_for_ever) {
  auto errors = on_all(2, [](Collectives& ranks) {
    uint8_t data[16] = {};
    std::vector<Part> to = {{0, 4}, {4, 4}};
    std::vector<Part> from = {{0, 4}, {4, ranks.rank() == 0 ? size_t{8} : size_t{4}}};
    ranks.all_to_all(data, to, data + 8, from);
    ranks.barrier();
  });
  EXPECT_NE(errors[0].find("rank 1 sends 4 bytes, rank 0 expects 8"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1], "");
}

}  // namespace ddip::comm::shm
