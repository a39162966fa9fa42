#include "ddip/schedule/weights.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "ddip/schedule/segments.h"

namespace ddip::schedule {

int64_t version_read_behind(const std::vector<int64_t>& step_ends, int64_t micro_batch) {
  const auto own = std::upper_bound(step_ends.begin(), step_ends.end(), micro_batch) - step_ends.begin();
  return std::max<int64_t>(0, own - 1);
}

void number_versions(const Request& request, RankLists& ranks) {
  const bool behind = reads_one_step_behind(request.schedule);
  const std::vector<int64_t> ends = step_ends(request);
  for (auto& actions : ranks) {
    std::vector<int64_t> newest(static_cast<size_t>(request.stages), 0);
    std::vector<std::unordered_map<int64_t, Action*>> forwards(newest.size());
    for (Action& action : actions) {
      if (action.kind == Kind::drain) continue;
      const auto stage = static_cast<size_t>(action.stage);
      if (action.kind == Kind::step) {
        action.version = ++newest[stage];
      } else if (action.kind == Kind::forward) {
        action.version = behind ? version_read_behind(ends, action.micro_batch) : newest[stage];
        forwards[stage][action.micro_batch] = &action;
      } else {
        Action& forward = *forwards[stage].at(action.micro_batch);
        action.version = newest[stage];
        action.staleness = static_cast<int>(newest[stage] - forward.version);
        // A split backward has two parts; no step of its stage comes between them in a synchronous schedule.
        if (action.kind == Kind::backward) forward.staleness = action.staleness;
      }
    }
  }
}

void insert_policy_actions(const Request& request, RankLists& ranks) {
  const Needs needs = request.needs;
  if (!needs.predicts && !needs.stashes && !needs.perturbs) return;
  for (auto& actions : ranks) {
    // What is read after the step that overwrites it: by stage and version, forwards that have not come yet.
    std::map<std::pair<int, int64_t>, std::vector<Action>> later;
    if (needs.stashes) {
      std::vector<int64_t> newest(static_cast<size_t>(request.stages), 0);
      for (const Action& action : actions) {
        if (action.kind == Kind::step) newest[static_cast<size_t>(action.stage)] = action.version;
        if (action.kind == Kind::forward && action.version < newest[static_cast<size_t>(action.stage)])
          later[{action.stage, action.version}].push_back(action);
      }
    }
    std::vector<int64_t> newest(static_cast<size_t>(request.stages), 0);
    std::vector<Action> with;
    const auto push = [&](Action action, Kind kind) {
      action.kind = kind;
      with.push_back(action);
    };
    for (const Action& action : actions) {
      if (action.kind == Kind::step) {
        const auto found = later.find({action.stage, action.version - 1});
        if (found != later.end())
          for (const Action& forward : found->second) push(forward, Kind::stash);
        newest[static_cast<size_t>(action.stage)] = action.version;
      }
      if (action.kind == Kind::forward && needs.perturbs) {
        push(action, Kind::predict);
        push(action, Kind::stash);
      } else if (action.kind == Kind::forward && action.staleness > 0) {
        if (needs.predicts) push(action, Kind::predict);
        if (needs.stashes && action.version == newest[static_cast<size_t>(action.stage)]) push(action, Kind::stash);
      }
      with.push_back(action);
    }
    actions = std::move(with);
  }
}

}  // namespace ddip::schedule
