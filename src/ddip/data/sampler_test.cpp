#include "ddip/data/sampler.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "ddip/base/error.h"

namespace ddip::data {
namespace {

std::vector<uint64_t> all_of(Sampler& sampler) {
  std::vector<uint64_t> all;
  for (auto batch = sampler.next(); !batch.empty(); batch = sampler.next())
    all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

TEST(Sampler, an_epoch_that_goes_on_brings_what_it_would_have_brought) {
  for (int rank : {0, 1}) {
    const SamplerOptions options{.samples = 101, .rank = rank, .world = 2, .batch = 7, .seed = 9};
    SamplerOptions others = options;
    others.rank = 1 - rank;
    Sampler whole(options), resumed(options), other(others);
    whole.begin_epoch(4);
    other.begin_epoch(4);
    Ledger done;
    for (int step = 0; step < 3; ++step) {
      done.add(whole.next());
      done.add(other.next());
    }
    resumed.begin_epoch(4, done);
    for (auto batch = whole.next(); !batch.empty(); batch = whole.next()) EXPECT_EQ(resumed.next(), batch);
    EXPECT_TRUE(resumed.next().empty());
  }
}

}  // namespace

// Whatever the sizes: every sample comes exactly once over all ranks, also when some are done already and the number of
// ranks is another one than before.
TEST(Sampler, shards_are_disjoint_and_cover_what_is_not_done) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    uint64_t samples = random() % 300;
    Ledger done;
    for (uint64_t sample = 0; sample < samples; ++sample) {
      if (random() % 3 == 0) done.add(sample);
    }
    int world = 1 + static_cast<int>(random() % 7);
    std::multiset<uint64_t> seen;
    for (int rank = 0; rank < world; ++rank) {
      Sampler sampler({.samples = samples, .rank = rank, .world = world, .batch = 1 + random() % 20, .seed = 9});
      sampler.begin_epoch(3, done);
      for (uint64_t sample : all_of(sampler)) seen.insert(sample);
    }
    ASSERT_EQ(seen.size(), samples - done.count());
    for (uint64_t sample = 0; sample < samples; ++sample)
      ASSERT_EQ(seen.count(sample), done.contains(sample) ? 0u : 1u);
  }
}

TEST(Sampler, order_is_fixed_by_seed_and_epoch_and_differs_between_them) {
  auto order = [](uint64_t seed, uint64_t epoch) {
    Sampler sampler({.samples = 100, .batch = 7, .seed = seed});
    sampler.begin_epoch(epoch);
    return all_of(sampler);
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  Sampler plain({.samples = 5, .shuffle = false});
  EXPECT_EQ(all_of(plain), (std::vector<uint64_t>{0, 1, 2, 3, 4}));
}

TEST(Sampler, every_order_of_three_is_as_likely) {
  std::map<std::vector<uint64_t>, int> counts;
  Sampler sampler({.samples = 3, .seed = 4});
  for (uint64_t epoch = 0; epoch < 6000; ++epoch) {
    sampler.begin_epoch(epoch);
    ++counts[all_of(sampler)];
  }
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Sampler, batches_have_their_size_but_the_last) {
  Sampler sampler({.samples = 10, .rank = 1, .world = 2, .batch = 3, .seed = 0});
  EXPECT_EQ(sampler.next().size(), 3u);
  EXPECT_EQ(sampler.remaining(), 2u);
  EXPECT_EQ(sampler.next().size(), 2u);
  EXPECT_TRUE(sampler.next().empty());
}

TEST(Sampler, nonsense_is_refused) {
  EXPECT_THROW(Sampler({.samples = 1, .rank = 2, .world = 2}), ConfigError);
  EXPECT_THROW(Sampler({.samples = 1, .batch = 0}), ConfigError);
}

// Beside a set: the ledger says the same, however the samples come.
TEST(Ledger, knows_exactly_what_is_done) {
  std::mt19937 random(6);
  for (int round = 0; round < 300; ++round) {
    Ledger ledger, other;
    std::set<uint64_t> truth;
    for (size_t count = random() % 60; count > 0; --count) {
      uint64_t sample = random() % 80;
      (random() % 2 ? ledger : other).add(sample);
      truth.insert(sample);
    }
    ledger.add(other);
    ASSERT_EQ(ledger.count(), truth.size());
    for (uint64_t sample = 0; sample < 82; ++sample) ASSERT_EQ(ledger.contains(sample), truth.contains(sample));
    ASSERT_EQ(Ledger::parse(ledger.text()), ledger) << ledger.text();
  }
  Ledger ledger;
  for (uint64_t sample : {5u, 3u, 4u, 9u}) ledger.add(sample);
  EXPECT_EQ(ledger.text(), "3-5,9");
  for (const char* wrong : {"x", "5-3", "1,", "-1", "1-", "1,,2", "18446744073709551615"})
    EXPECT_THROW(Ledger::parse(wrong), ConfigError) << wrong;
}

}  // namespace ddip::data
