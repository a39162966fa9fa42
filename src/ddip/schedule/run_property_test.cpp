// "One run decides for all": checked by trying every order in which the ranks of small plans can move.
#include "ddip/schedule/run.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <set>

#include "ddip/schedule/counts.h"
#include "ddip/schedule/testing/random_request.h"

namespace ddip::schedule {
namespace {

// All states that can be reached: how far each rank is. What lies in the channels follows from that.
class Explorer {
 public:
  Explorer(const Plan& plan, const std::vector<int>& capacity, size_t most_states)
      : plan_(plan), capacity_(capacity), most_states_(most_states) {}

  // Some order gets stuck, some order gets through; or there are too many to tell.
  struct Answer {
    bool gets_stuck = false, gets_through = false, known = true;
  };

  Answer explore() {
    std::vector<State> todo = {State(plan_.ranks.size(), 0)};
    std::set<State> seen(todo.begin(), todo.end());
    Answer answer;
    while (!todo.empty()) {
      const State state = todo.back();
      todo.pop_back();
      const std::vector<State> next = moves(state);
      if (next.empty()) (is_end(state) ? answer.gets_through : answer.gets_stuck) = true;
      for (const State& one : next)
        if (seen.insert(one).second) todo.push_back(one);
      if (seen.size() > most_states_) return {.known = false};
    }
    return answer;
  }

 private:
  using State = std::vector<size_t>;

  bool is_end(const State& state) const {
    for (size_t rank = 0; rank < state.size(); ++rank)
      if (state[rank] < plan_.ranks[rank].size()) return false;
    return true;
  }

  int count(const State& state, Kind kind, const Action& like) const {
    int found = 0;
    for (size_t rank = 0; rank < state.size(); ++rank)
      for (size_t index = 0; index < state[rank]; ++index) {
        const Action& action = plan_.ranks[rank][index];
        found += action.kind == kind && action.edge == like.edge && action.direction == like.direction ? 1 : 0;
      }
    return found;
  }

  std::vector<State> moves(const State& state) const {
    std::vector<State> found;
    for (size_t rank = 0; rank < state.size(); ++rank) {
      if (state[rank] == plan_.ranks[rank].size()) continue;
      const Action& action = plan_.ranks[rank][state[rank]];
      State next = state;
      ++next[rank];
      if (action.edge < 0) {
        found.push_back(next);
        continue;
      }
      const int sent = count(state, Kind::send, action), received = count(state, Kind::receive, action);
      const int room = capacity_[static_cast<size_t>(action.edge) * 2 + (action.direction == Direction::gradient)];
      if (action.kind == Kind::receive && sent > received) found.push_back(next);
      if (action.kind == Kind::retire && received > count(state, Kind::retire, action)) found.push_back(next);
      if (action.kind == Kind::send && room > 0 && sent - received < room) found.push_back(next);
      if (action.kind == Kind::send && room == 0)
        for (size_t other = 0; other < state.size(); ++other) {
          if (other == rank || state[other] == plan_.ranks[other].size()) continue;
          const Action& opposite = plan_.ranks[other][state[other]];
          if (opposite.kind != Kind::receive || opposite.edge != action.edge || opposite.direction != action.direction)
            continue;
          State met = next;
          ++met[other];
          found.push_back(met);
        }
    }
    return found;
  }

  const Plan& plan_;
  const std::vector<int>& capacity_;
  const size_t most_states_;
};

TEST(RunProperty, finishes_where_every_order_does_and_is_stuck_where_every_order_is) {
  int stuck = 0, through = 0;
  EXPECT_TRUE(holds("one run decides for all", 1000, [&] {
    Request request = random_request({.stages = 3, .micro_batches = 3, .batches = 1});
    request.needs = {};
    Plan plan = make_plan(request);
    // Any capacities, and lists in an order that nobody planned.
    for (int& room : plan.capacity) room = between(0, 2);
    for (int changes = between(0, 3); changes > 0; --changes) {
      auto& actions = plan.ranks[static_cast<size_t>(between(0, static_cast<int>(plan.ranks.size()) - 1))];
      if (actions.size() < 2) continue;
      const size_t index = static_cast<size_t>(between(1, static_cast<int>(actions.size()) - 1));
      std::swap(actions[index - 1], actions[index]);
    }
    const auto answer = Explorer(plan, plan.capacity, 4000).explore();
    if (!answer.known) return;
    log_plan(plan);
    RC_ASSERT(answer.gets_stuck != answer.gets_through);
    RC_ASSERT(run(plan, plan.request.costs, plan.capacity).finished == answer.gets_through);
    ++(answer.gets_stuck ? stuck : through);
  }));
  EXPECT_GT(stuck, 10);
  EXPECT_GT(through, 10);
}

TEST(RunProperty, with_the_room_that_is_ever_needed_nobody_waits_for_it_and_with_less_somebody_may) {
  EXPECT_TRUE(holds("room that is ever needed", 200, [] {
    Request request = random_request({.stages = 3, .micro_batches = 4, .batches = 2});
    const Plan plan = make_plan(request);
    const std::vector<int> ever = most_frames_ever(plan);
    // The most frames that any order of moves brings together, by brute force over random orders.
    std::vector<int> most(ever.size(), 0);
    for (int attempt = 0; attempt < 20; ++attempt) {
      std::vector<size_t> next(plan.ranks.size(), 0);
      std::vector<int> frames(ever.size(), 0);
      const auto can_move = [&](size_t rank) {
        if (next[rank] == plan.ranks[rank].size()) return false;
        const Action& action = plan.ranks[rank][next[rank]];
        return action.kind != Kind::receive ||
               frames[channel_of(action.edge, action.direction == Direction::gradient)] > 0;
      };
      while (true) {
        std::vector<size_t> able;
        for (size_t rank = 0; rank < next.size(); ++rank)
          if (can_move(rank)) able.push_back(rank);
        if (able.empty()) break;
        const size_t rank = able[static_cast<size_t>(between(0, static_cast<int>(able.size()) - 1))];
        // Stay with one rank for a while: orders that differ much are reached sooner.
        for (int steps = between(1, 8); steps > 0 && can_move(rank); --steps) {
          const Action& action = plan.ranks[rank][next[rank]++];
          if (action.edge < 0 || action.kind == Kind::retire) continue;
          const size_t channel = channel_of(action.edge, action.direction == Direction::gradient);
          frames[channel] += action.kind == Kind::send ? 1 : -1;
          most[channel] = std::max(most[channel], frames[channel]);
        }
      }
    }
    for (size_t channel = 0; channel < ever.size(); ++channel) RC_ASSERT(most[channel] <= ever[channel]);
  }));
}

}  // namespace
}  // namespace ddip::schedule
