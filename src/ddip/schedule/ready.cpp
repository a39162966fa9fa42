#include "ddip/schedule/ready.h"

#include <algorithm>

#include "ddip/schedule/messages.h"

namespace ddip::schedule {

void make_room_for_any_order(Plan& plan) {
  const Request& request = plan.request;
  const auto owed = [&](size_t stage) { return request.window[stage] + 1; };
  plan.capacity = request.capacity;
  if (plan.capacity.empty())
    for (const auto& [from, to] : request.edges)
      plan.capacity.insert(plan.capacity.end(), 2, owed(static_cast<size_t>(from)));
  plan.activations.clear();
  plan.versions.clear();
  for (size_t stage = 0; stage < request.window.size(); ++stage) {
    plan.activations.push_back(owed(stage));
    // Of the micro-batches that are owed the versions that they read, and those that they count on, only grow.
    const int steps = (request.window[stage] + request.accumulate - 1) / request.accumulate;
    const int kept = request.needs.predicts ? 2 * steps + 2 : steps + 1;
    plan.versions.push_back(request.needs.stashes ? kept : 1);
  }
}

ReadyOrder::ReadyOrder(const Request& request, int stage)
    : request_(request), stage_(stage), segments_(segments(request)), ends_(step_ends(request)) {}

bool ReadyOrder::ends_step(int64_t micro_batch) const {
  return std::binary_search(ends_.begin(), ends_.end(), micro_batch + 1);
}

std::vector<Action> ReadyOrder::forward() const {
  if (segment_ == segments_.size() || forwards_ == segments_[segment_].end) return {};
  if (forwards_ - backwards_ > request_.window[static_cast<size_t>(stage_)]) return {};
  // Backwards come in the order of forwards: all steps that end before this one's backward lie between the two.
  const auto steps_before = std::upper_bound(ends_.begin(), ends_.end(), forwards_) - ends_.begin();
  RankLists one{{{.kind = Kind::forward,
                  .stage = stage_,
                  .micro_batch = forwards_,
                  .version = steps_,
                  .staleness = static_cast<int>(steps_before - steps_)}}};
  insert_messages(request_, one);
  return one[0];
}

std::vector<Action> ReadyOrder::backward() const {
  if (backwards_ == forwards_) return {};
  RankLists one{{{.kind = Kind::backward,
                  .stage = stage_,
                  .micro_batch = backwards_,
                  .version = steps_,
                  .staleness = static_cast<int>(steps_ - read_.front())}}};
  insert_messages(request_, one);
  if (ends_step(backwards_))
    one[0].push_back({.kind = Kind::step, .stage = stage_, .micro_batch = backwards_, .version = steps_ + 1});
  if (backwards_ + 1 == segments_[segment_].end && segments_[segment_].drains)
    one[0].push_back({.kind = Kind::drain, .micro_batch = backwards_});
  return one[0];
}

void ReadyOrder::did_forward() {
  read_.push_back(steps_);
  ++forwards_;
}

void ReadyOrder::did_backward() {
  if (ends_step(backwards_)) ++steps_;
  read_.pop_front();
  if (++backwards_ == segments_[segment_].end) ++segment_;
}

Plan plan_of_done(const Plan& plan, RankLists done) {
  Plan found = plan;
  insert_policy_actions(plan.request, done);
  insert_retires(plan.request, plan.capacity, done);
  found.ranks = std::move(done);
  return found;
}

}  // namespace ddip::schedule
