#include "ddip/pipeline/record.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ddip::pipeline {
namespace {

using schedule::Action;
using schedule::Direction;
using schedule::Kind;

// What a middle rank does with each micro-batch where weights are predicted and kept.
std::vector<Action> actions_of(int64_t micro_batches) {
  std::vector<Action> found;
  for (int64_t k = 0; k < micro_batches; ++k) {
    const Action one{.stage = 1, .micro_batch = k, .edge = 0, .version = k, .staleness = 2};
    for (Kind kind : {Kind::receive, Kind::predict, Kind::stash, Kind::forward, Kind::send, Kind::receive,
                      Kind::backward, Kind::send, Kind::step, Kind::retire}) {
      found.push_back(one);
      found.back().kind = kind;
    }
  }
  return found;
}

Done done_of(const Action& action, size_t place) {
  const auto k = action.micro_batch;
  Done done{
      .action = action, .begin = 0.5 * static_cast<double>(place), .end = 0.5 * static_cast<double>(place) + 0.25};
  if (action.kind == Kind::forward) {
    done.count = 7;
    done.used = {.label = (int64_t{1} << 48) + k,
                 .version = k,
                 .staleness = 2,
                 .predicted = true,
                 .rates = {{0.1, 0.2}, {0.3, 0.4}},
                 .pending = {k - 2, k - 1}};
  }
  if (action.kind == Kind::backward) {
    done.count = 6.5;
    done.read = {.from = ReadBack::From::policy, .version = k + 1, .rates = {{0.1}, {0.3}}};
    done.loss_scale = std::ldexp(1.0, static_cast<int>(k % 7) - 3);
    done.split = k % 2 == 1;
  }
  if (action.kind == Kind::step) {
    done.stepped = {.micro_batches = {k, k + 1, k + 5},
                    .count = 6.5,
                    .norm = 2.5,
                    .scale = 0.125,
                    .left_out = k % 2 == 1,
                    .rates = {0.1, 0.3}};
    done.count = done.stepped.count;
  }
  return done;
}

void expect_equal(const Done& found, const Done& done) {
  EXPECT_EQ(found.action, done.action);
  EXPECT_EQ(found.begin, done.begin);
  EXPECT_EQ(found.end, done.end);
  EXPECT_EQ(found.count, done.count);
  EXPECT_EQ(found.split, done.split);
  if (done.action.kind == Kind::forward) {
    EXPECT_EQ(found.used.label, done.used.label);
    EXPECT_EQ(found.used.version, done.used.version);
    EXPECT_EQ(found.used.staleness, done.used.staleness);
    EXPECT_EQ(found.used.predicted, done.used.predicted);
    EXPECT_EQ(found.used.rates, done.used.rates);
    EXPECT_EQ(found.used.pending, done.used.pending);
  }
  EXPECT_EQ(found.read.from, done.read.from);
  EXPECT_EQ(found.read.version, done.read.version);
  EXPECT_EQ(found.read.rates, done.read.rates);
  EXPECT_EQ(found.stepped.micro_batches, done.stepped.micro_batches);
  EXPECT_EQ(found.stepped.count, done.stepped.count);
  EXPECT_EQ(found.stepped.norm, done.stepped.norm);
  EXPECT_EQ(found.stepped.scale, done.stepped.scale);
  EXPECT_EQ(found.stepped.left_out, done.stepped.left_out);
  EXPECT_EQ(found.loss_scale, done.loss_scale);
  EXPECT_EQ(found.stepped.rates, done.stepped.rates);
}

TEST(Record, gives_back_what_was_added) {
  const std::vector<Action> actions = actions_of(50);
  Record record(actions);
  for (size_t place = 0; place < actions.size(); ++place) record.add(done_of(actions[place], place));
  ASSERT_EQ(record.size(), actions.size());
  size_t place = 0;
  for (const Done& done : record.actions()) {
    expect_equal(done, done_of(actions[place], place));
    ++place;
  }
  EXPECT_EQ(place, actions.size());
}

TEST(Record, rates_that_change_with_every_step_are_kept_apart) {
  const std::vector<Action> actions = actions_of(50);
  Record record(actions);
  auto changed = [&](size_t place) {
    Done done = done_of(actions[place], place);
    for (std::vector<double>& group : done.used.rates) group[1] += static_cast<double>(actions[place].micro_batch);
    for (double& rate : done.stepped.rates) rate += static_cast<double>(actions[place].micro_batch);
    return done;
  };
  for (size_t place = 0; place < actions.size(); ++place) record.add(changed(place));
  for (size_t place = 0; place < actions.size(); ++place) expect_equal(record.at(place), changed(place));
}

TEST(Record, a_step_that_comes_later_than_its_action_is_where_the_action_was) {
  const std::vector<Action> actions(3, {.kind = Kind::step, .stage = 0, .micro_batch = 4, .version = 1});
  Record record(actions);
  for (const Action& action : actions) record.add({.action = action});
  record.step_later(1, {.micro_batches = {4}, .count = 3, .norm = 1, .scale = 0.5, .rates = {0.1}});
  EXPECT_EQ(record.at(1).count, 3);
  EXPECT_EQ(record.at(1).stepped.micro_batches, std::vector<int64_t>{4});
  EXPECT_TRUE(record.at(0).stepped.micro_batches.empty());
  EXPECT_TRUE(record.at(2).stepped.micro_batches.empty());
}

TEST(Record, a_micro_batch_of_a_rank_takes_less_than_a_quarter_of_a_kibibyte_beside_what_it_read) {
  constexpr int64_t kMicroBatches = 10000;
  // Without those that this rank only plans: a middle rank's seven, and a step.
  std::vector<Action> actions = actions_of(kMicroBatches);
  std::erase_if(actions, [](const Action& one) { return one.kind == Kind::retire || one.kind == Kind::stash; });
  Record record(actions);
  for (size_t place = 0; place < actions.size(); ++place) {
    Done done = done_of(actions[place], place);
    done.used.pending.clear();
    if (actions[place].kind == Kind::step) done.stepped.micro_batches = {actions[place].micro_batch};
    record.add(done);
  }
  EXPECT_LT(record.bytes() / kMicroBatches, 256u);
}

TEST(Losses, are_sums_and_counts_by_micro_batch) {
  Losses losses;
  for (int64_t k = 0; k < 100; ++k) losses.add(k, at::scalar_tensor(0.5 * static_cast<double>(k), at::kFloat), 2);
  ASSERT_EQ(losses.all().size(), 100u);
  EXPECT_EQ(losses.all()[30].micro_batch, 30);
  EXPECT_EQ(losses.all()[30].sum, 15);
  EXPECT_EQ(losses.all()[30].count, 2);
  const Losses::Newest newest = losses.newest(3);
  EXPECT_EQ(newest.micro_batch, 99);
  EXPECT_EQ(newest.sum.item<double>(), 0.5 * (97 + 98 + 99));
  EXPECT_EQ(newest.count, 6);
  EXPECT_EQ(losses.newest(1000).count, 200);
  EXPECT_EQ(Losses().newest(3).count, 0);
}

}  // namespace
}  // namespace ddip::pipeline
