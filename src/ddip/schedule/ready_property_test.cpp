// Stages that do what is there, with messages that come whenever they like: whatever order it becomes, it is a right
// plan, nobody is stuck, and no send finds its channel full.
#include "ddip/schedule/ready.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

#include "ddip/base/error.h"
#include "ddip/schedule/checker.h"
#include "ddip/schedule/testing/random_request.h"

namespace ddip::schedule {
namespace {

size_t channel(const Action& message) { return channel_of(message.edge, message.direction == Direction::gradient); }

// Ranks without time: what happens next is drawn.
class Ranks {
 public:
  explicit Ranks(const Plan& plan)
      : sent_(plan.capacity.size()),
        come_(plan.capacity.size()),
        taken_(plan.capacity.size()),
        most(plan.capacity.size()),
        done(plan.ranks.size()) {
    for (int stage = 0; stage < plan.request.stages; ++stage) orders_.emplace_back(plan.request, stage);
    rank_of_stage_ = plan.request.rank_of_stage;
  }

  // One of the messages that are under way comes. `which`: one drawn of so many.
  bool deliver(int which) {
    std::vector<size_t> under_way;
    for (size_t one = 0; one < sent_.size(); ++one)
      if (come_[one] < sent_[one]) under_way.push_back(one);
    if (under_way.empty()) return false;
    ++come_[under_way[static_cast<size_t>(which) % under_way.size()]];
    return true;
  }

  // One stage that can go on does.
  bool go_on(int which) {
    for (size_t tried = 0; tried < orders_.size(); ++tried) {
      const size_t stage = (static_cast<size_t>(which) + tried) % orders_.size();
      const std::vector<Action> backward = orders_[stage].backward(), forward = orders_[stage].forward();
      const bool may_back = !backward.empty() && is_there(backward), may_go = !forward.empty() && is_there(forward);
      if (!may_back && !may_go) continue;
      const bool back = may_back && (!may_go || which % 2 == 0);  // whichever: it must not matter
      perform(stage, back ? backward : forward);
      back ? orders_[stage].did_backward() : orders_[stage].did_forward();
      return true;
    }
    return false;
  }

  bool over() const {
    for (const ReadyOrder& order : orders_)
      if (!order.backward().empty() || !order.forward().empty()) return false;
    return true;
  }

 private:
  bool is_there(const std::vector<Action>& actions) const {
    for (const Action& action : actions)
      if (action.kind == Kind::receive && taken_[channel(action)] == come_[channel(action)]) return false;
    return true;
  }

  void perform(size_t stage, const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      done[static_cast<size_t>(rank_of_stage_[stage])].push_back(action);
      if (action.kind == Kind::receive) ++taken_[channel(action)];
      if (action.kind != Kind::send) continue;
      int& now = sent_[channel(action)];
      ++now;
      most[channel(action)] = std::max(most[channel(action)], now - taken_[channel(action)]);
    }
  }

  std::vector<ReadyOrder> orders_;
  std::vector<int> rank_of_stage_;
  std::vector<int> sent_, come_, taken_;  // by channel

 public:
  std::vector<int> most;  // by channel: sent and not taken, at once
  RankLists done;
};

Request random_ready_request() {
  Request request = random_request({});
  while (is_synchronous(request.schedule) || reads_one_step_behind(request.schedule)) request = random_request({});
  for (int stage = 0; stage < request.stages; ++stage) request.rank_of_stage[static_cast<size_t>(stage)] = stage;
  request.order = "ready";
  return request;
}

}  // namespace

TEST(ReadyProperty, whatever_comes_first_it_is_a_right_plan) {
  EXPECT_TRUE(holds("whatever comes first, it is a right plan", 2000, [] {
    const Plan plan = make_plan(random_ready_request());
    RC_ASSERT(check(plan).ok());
    Ranks ranks(plan);
    const int haste = between(0, 4);  // how much more often stages go on than messages come
    while (!ranks.over()) {
      const bool comes = between(0, 4) >= haste;
      const bool happened = comes ? ranks.deliver(between(0, 99)) : ranks.go_on(between(0, 99));
      if (!happened) RC_ASSERT(ranks.go_on(0) || ranks.deliver(0));
    }
    const Plan done = plan_of_done(plan, ranks.done);
    log_plan(done);
    const Verdict verdict = check(done);
    RC_LOG() << verdict.error;
    RC_ASSERT(verdict.ok());
    for (size_t one = 0; one < plan.capacity.size(); ++one) RC_ASSERT(ranks.most[one] <= plan.capacity[one]);
  }));
}

TEST(Ready, what_may_come_next_and_how_stale_it_will_be) {
  const Plan plan =
      make_plan({.schedule = "async_1f1b", .stages = 2, .micro_batches = 6, .window = {3, 0}, .order = "ready"});
  ReadyOrder first(plan.request, 0);
  // It runs ahead as far as the window goes, and no further.
  for (int forwards = 0; forwards < 4; ++forwards, first.did_forward()) EXPECT_FALSE(first.forward().empty());
  EXPECT_TRUE(first.forward().empty());
  EXPECT_EQ(to_text(first.backward().at(1)), "backward stage=0 micro_batch=0 version=0 staleness=0");
  first.did_backward();
  // The next forward's backward comes after those of 1, 2 and 3.
  EXPECT_EQ(to_text(first.forward().at(0)), "forward stage=0 micro_batch=4 version=1 staleness=3");
  first.did_backward();
  first.did_backward();
  first.did_backward();
  // After all backwards nothing is stale any more.
  EXPECT_EQ(to_text(first.forward().at(0)), "forward stage=0 micro_batch=4 version=4 staleness=0");
}

TEST(Ready, what_was_done_wrongly_is_refused) {
  const Plan plan = make_plan({.schedule = "async_1f1b", .stages = 3, .micro_batches = 5, .order = "ready"});
  Ranks ranks(plan);
  while (!ranks.over()) {
    if (!ranks.go_on(0)) ranks.deliver(0);
  }
  ASSERT_TRUE(check(plan_of_done(plan, ranks.done)).ok());
  const auto changed = [&](const std::function<void(std::vector<Action>&)>& change) {
    RankLists done = ranks.done;
    change(done[1]);
    return check(plan_of_done(plan, done)).error;
  };
  const auto find = [](std::vector<Action>& list, Kind kind, int64_t micro_batch) {
    return std::ranges::find_if(
        list, [&](const Action& action) { return action.kind == kind && action.micro_batch == micro_batch; });
  };
  EXPECT_NE(changed([&](auto& list) { find(list, Kind::forward, 2)->staleness += 1; }), "");
  EXPECT_NE(changed([&](auto& list) { find(list, Kind::forward, 3)->version -= 1; }), "");
  EXPECT_NE(changed([&](auto& list) { std::swap(*find(list, Kind::backward, 1), *find(list, Kind::backward, 2)); }),
            "");
  EXPECT_NE(changed([&](auto& list) { list.erase(find(list, Kind::step, 2)); }), "");
  // One forward more than the window allows.
  Plan narrow = plan;
  narrow.activations[0] -= 1;
  EXPECT_NE(check(plan_of_done(narrow, ranks.done)).error, "");
}

TEST(Ready, what_has_no_other_order_is_refused_in_one_line) {
  const auto refusal = [](Request request) {
    try {
      make_plan(request);
      return std::string();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refusal({.schedule = "1f1b", .stages = 2, .order = "ready"}),
            "order=\"ready\": 1f1b has one order; expected async_1f1b, virtual_async or paci");
  EXPECT_EQ(refusal({.schedule = "2bw", .stages = 2, .accumulate = 3, .order = "ready"}),
            "order=\"ready\": 2bw has one order; expected async_1f1b, virtual_async or paci");
  EXPECT_EQ(refusal({.schedule = "async_1f1b", .stages = 2, .rank_of_stage = {0, 0}, .order = "ready"}),
            "order=\"ready\": several stages are on one rank; expected a rank for each");
  EXPECT_EQ(refusal({.schedule = "async_1f1b", .stages = 2, .order = "raedy"}),
            "order=\"raedy\": expected plan or ready; did you mean ready?");
}

}  // namespace ddip::schedule
