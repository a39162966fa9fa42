#include "ddip/schedule/messages.h"

#include <algorithm>
#include <deque>

namespace ddip::schedule {
namespace {

Action message(Kind kind, const Action& work, Direction direction, size_t edge) {
  return {.kind = kind,
          .direction = direction,
          .stage = work.stage,
          .micro_batch = work.micro_batch,
          .edge = static_cast<int>(edge)};
}

}  // namespace

void insert_messages(const Request& request, RankLists& ranks) {
  for (auto& actions : ranks) {
    std::vector<Action> with;
    // `incoming`: of the edges that end (activations) or begin (gradients) at this stage.
    const auto push_all = [&](const Action& work, Kind kind, Direction direction, bool incoming) {
      for (size_t edge = 0; edge < request.edges.size(); ++edge) {
        const auto& [from, to] = request.edges[edge];
        const bool at_end = incoming == (direction == Direction::activation);
        if ((at_end ? to : from) == work.stage && request.crosses(static_cast<int>(edge)))
          with.push_back(message(kind, work, direction, edge));
      }
    };
    for (const Action& action : actions) {
      const bool forward = action.kind == Kind::forward;
      const bool computes = forward || action.kind == Kind::backward;
      const Direction direction = forward ? Direction::activation : Direction::gradient;
      if (computes) push_all(action, Kind::receive, direction, true);
      with.push_back(action);
      if (computes) push_all(action, Kind::send, direction, false);
    }
    actions = std::move(with);
  }
}

void insert_retires(const Request& request, const std::vector<int>& capacity, RankLists& ranks) {
  for (auto& actions : ranks) {
    std::vector<Action> with;
    std::vector<std::deque<Action>> sent(request.edges.size() * 2);
    const auto retire_until = [&](std::deque<Action>& queue, size_t left) {
      for (; queue.size() > left; queue.pop_front()) {
        with.push_back(queue.front());
        with.back().kind = Kind::retire;
      }
    };
    for (const Action& action : actions) {
      if (action.kind == Kind::drain)
        for (auto& queue : sent) retire_until(queue, 0);
      if (action.kind != Kind::send) {
        with.push_back(action);
        continue;
      }
      const size_t channel = channel_of(action.edge, action.direction == Direction::gradient);
      const auto room = static_cast<size_t>(capacity[channel]);
      retire_until(sent[channel], room == 0 ? 0 : room - 1);
      with.push_back(action);
      sent[channel].push_back(action);
      if (room == 0) retire_until(sent[channel], 0);  // they met: it has been taken
    }
    actions = std::move(with);
  }
}

}  // namespace ddip::schedule
