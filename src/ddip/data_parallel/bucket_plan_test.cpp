#include "ddip/data_parallel/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace ddip::data_parallel {
namespace {

std::vector<size_t> in_order(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace

TEST(BucketPlan, first_bucket_is_small_the_others_are_full) {
  std::vector<Gradient> gradients(10, {100'000, 4, 0});  // 400 kB each
  auto plan = plan_buckets(gradients, in_order(10), {.first_bytes = 1'000'000, .bytes = 2'000'000});
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[0].members, (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(plan.buckets[1].members, (std::vector<size_t>{3, 4, 5, 6, 7}));
  EXPECT_EQ(plan.buckets[2].members, (std::vector<size_t>{8, 9}));
}

TEST(BucketPlan, follows_the_order_in_which_gradients_become_ready) {
  std::vector<Gradient> gradients(4, {10, 4, 0});
  auto plan = plan_buckets(gradients, std::vector<size_t>{2, 0, 3, 1}, {.first_bytes = 1, .bytes = 1});
  ASSERT_EQ(plan.buckets.size(), 4u);
  for (size_t index = 0; index < 4; ++index)
    EXPECT_EQ(plan.buckets[index].members[0], (std::vector<size_t>{2, 0, 3, 1})[index]);
}

TEST(BucketPlan, what_was_used_together_shares_no_bucket_with_what_was_not) {
  std::vector<Gradient> gradients(6, {10, 4, 0});
  auto plan = plan_buckets(gradients, std::vector<size_t>{3, 4, 0, 1, 2, 5}, {}, 2);
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(plan.buckets[0].members, (std::vector<size_t>{3, 4}));
  EXPECT_EQ(plan.buckets[1].members, (std::vector<size_t>{0, 1, 2, 5}));
}

// The ranks send buckets in this order, so one that is complete early must not wait behind one that is not.
TEST(BucketPlan, open_buckets_of_several_kinds_come_in_the_order_in_which_they_become_complete) {
  std::vector<Gradient> gradients = {{10, 4, 0}, {10, 8, 1}, {10, 2, 2}, {10, 4, 0}};
  auto plan = plan_buckets(gradients, std::vector<size_t>{0, 1, 2, 3}, {});
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[0].kind, 1);
  EXPECT_EQ(plan.buckets[1].kind, 2);
  EXPECT_EQ(plan.buckets[2].members, (std::vector<size_t>{0, 3}));
}

TEST(BucketPlan, nothing_makes_no_bucket) { EXPECT_TRUE(plan_buckets({}, {}, {}).buckets.empty()); }

// Whatever the sizes, kinds and order: every gradient has a place of its own inside its bucket, of its kind, on a line.
TEST(BucketPlan, places_never_overlap) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    size_t count = random() % 40;
    std::vector<Gradient> gradients;
    for (size_t index = 0; index < count; ++index) {
      int kind = static_cast<int>(random() % 3);
      gradients.push_back({random() % 5000, kind == 0 ? 2u : kind == 1 ? 4u : 8u, kind});
    }
    auto order = in_order(count);
    std::shuffle(order.begin(), order.end(), random);
    auto plan =
        plan_buckets(gradients, order, {.first_bytes = random() % 20000, .bytes = random() % 100000}, random() % 50);
    std::vector<int> seen(count, 0);
    std::vector<std::vector<char>> taken;
    for (size_t total : plan.total) taken.emplace_back(total, 0);
    for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      const Bucket& one = plan.buckets[bucket];
      ASSERT_FALSE(one.members.empty());
      for (size_t member : one.members) {
        ++seen[member];
        ASSERT_EQ(plan.bucket_of[member], bucket);
        ASSERT_EQ(gradients[member].kind, one.kind);
        ASSERT_EQ(plan.begin[member] * gradients[member].element_bytes % 64, 0u);
        ASSERT_GE(plan.begin[member], one.begin);
        ASSERT_LE(plan.begin[member] + gradients[member].elements, one.begin + one.elements);
        for (size_t element = 0; element < gradients[member].elements; ++element)
          ASSERT_EQ(taken[static_cast<size_t>(one.kind)][plan.begin[member] + element]++, 0);
      }
    }
    ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

}  // namespace ddip::data_parallel
