#include "ddip/schedule/counts.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ddip::schedule {
namespace {

Kind last_kind(const Plan& plan) {
  return splits_backward(plan.request.schedule) ? Kind::weight_gradient : Kind::backward;
}

// Runs the lists without time; the RECVs of one channel only when everything else stands still.
class SlowReceiver {
 public:
  SlowReceiver(const Plan& plan, size_t channel)
      : plan_(plan), channel_(channel), next_(plan.ranks.size(), 0), frames_(plan.capacity.size(), 0) {}

  int most() {
    do {
      bool moved = true;
      while (moved) {
        moved = false;
        for (size_t rank = 0; rank < next_.size(); ++rank)
          while (advance(rank, false)) moved = true;
      }
    } while (take_one());
    return most_;
  }

 private:
  bool take_one() {
    for (size_t rank = 0; rank < next_.size(); ++rank)
      if (advance(rank, true)) return true;
    return false;
  }

  bool advance(size_t rank, bool may_take) {
    if (next_[rank] == plan_.ranks[rank].size()) return false;
    const Action& action = plan_.ranks[rank][next_[rank]];
    if (action.kind == Kind::send || action.kind == Kind::receive) {
      const size_t channel = channel_of(action.edge, action.direction == Direction::gradient);
      if (action.kind == Kind::send) {
        ++frames_[channel];
        if (channel == channel_) most_ = std::max(most_, frames_[channel]);
      } else {
        if (frames_[channel] == 0 || (channel == channel_ && !may_take)) return false;
        --frames_[channel];
      }
    }
    ++next_[rank];
    return true;
  }

  const Plan& plan_;
  const size_t channel_;
  std::vector<size_t> next_;
  std::vector<int> frames_;
  int most_ = 0;
};

}  // namespace

std::vector<int> most_activations(const Plan& plan) {
  const auto stages = static_cast<size_t>(plan.request.stages);
  std::vector<int> alive(stages, 0), most(stages, 0);
  for (const auto& actions : plan.ranks)
    for (const Action& action : actions) {
      if (action.kind == Kind::forward) {
        int& mine = alive[static_cast<size_t>(action.stage)];
        most[static_cast<size_t>(action.stage)] = std::max(most[static_cast<size_t>(action.stage)], ++mine);
      }
      if (action.kind == last_kind(plan)) --alive[static_cast<size_t>(action.stage)];
    }
  return most;
}

std::vector<int> most_versions(const Plan& plan) {
  std::vector<int> most(static_cast<size_t>(plan.request.stages), 1);
  // Version, and steps predicted; of weights that only one forward has, less than none.
  using Weights = std::pair<int64_t, int64_t>;
  for (const auto& actions : plan.ranks) {
    std::vector<std::map<Weights, int>> kept(most.size());
    std::vector<std::map<int64_t, Weights>> of(most.size());
    std::vector<int64_t> newest(most.size(), 0);
    for (const Action& action : actions) {
      if (action.stage < 0) continue;
      const auto stage = static_cast<size_t>(action.stage);
      if (action.kind == Kind::step) newest[stage] = action.version;
      if (action.kind == Kind::stash) {
        const Needs& needs = plan.request.needs;
        const Weights weights{action.version, needs.perturbs   ? -1 - action.micro_batch
                                              : needs.predicts ? action.staleness
                                                               : 0};
        of[stage][action.micro_batch] = weights;
        ++kept[stage][weights];
      }
      if (action.kind == last_kind(plan)) {
        const auto found = of[stage].find(action.micro_batch);
        if (found == of[stage].end()) continue;
        if (--kept[stage][found->second] == 0) kept[stage].erase(found->second);
        of[stage].erase(found);
      }
      const bool newest_is_kept = kept[stage].contains({newest[stage], 0});
      most[stage] = std::max(most[stage], static_cast<int>(kept[stage].size()) + (newest_is_kept ? 0 : 1));
    }
  }
  return most;
}

std::vector<int> most_staleness(const Plan& plan) {
  std::vector<int> most(static_cast<size_t>(plan.request.stages), 0);
  for (const auto& actions : plan.ranks)
    for (const Action& action : actions)
      if (action.kind == Kind::forward)
        most[static_cast<size_t>(action.stage)] = std::max(most[static_cast<size_t>(action.stage)], action.staleness);
  return most;
}

std::vector<int> most_frames_ever(const Plan& plan) {
  std::vector<int> most;
  for (size_t channel = 0; channel < plan.capacity.size(); ++channel)
    most.push_back(plan.request.crosses(static_cast<int>(channel / 2)) ? SlowReceiver(plan, channel).most() : 0);
  return most;
}

}  // namespace ddip::schedule
