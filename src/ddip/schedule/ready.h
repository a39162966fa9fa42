// order="ready": a stage does what is there. Its window, steps and versions are those of the plan; whether a forward or
// a backward comes next is found while it runs: what the plan would do, a forward where the window allows one, unless
// its message has not come and the other's has. So nobody waits for one message while another is there.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "ddip/schedule/plan.h"
#include "ddip/schedule/segments.h"
#include "ddip/schedule/weights.h"

namespace ddip::schedule {

// Room for whatever comes first: no send ever waits. A stage owes at most one backward more than its window, and no
// message lies longer than that. REQUIRES: the plan's request is completed.
void make_room_for_any_order(Plan& plan);

// What the rank of one stage may do next.
class ReadyOrder {
 public:
  // `request`: completed.
  ReadyOrder(const Request& request, int stage);

  // Each begins with the messages that it waits for. Empty: nothing of that kind may come now. Both empty: it is over.
  std::vector<Action> backward() const;
  std::vector<Action> forward() const;
  void did_backward();
  void did_forward();

 private:
  bool ends_step(int64_t micro_batch) const;

  const Request request_;
  const int stage_;
  const std::vector<Segment> segments_;
  const std::vector<int64_t> ends_;  // of steps
  size_t segment_ = 0;
  int64_t forwards_ = 0, backwards_ = 0, steps_ = 0;
  std::deque<int64_t> read_;  // versions, of the micro-batches whose backwards are owed
};

// What ranks have done instead of `plan`, as a plan: whether it is right can be checked, and it can be drawn.
Plan plan_of_done(const Plan& plan, RankLists done);

}  // namespace ddip::schedule
