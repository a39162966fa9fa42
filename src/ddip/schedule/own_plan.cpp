#include "ddip/schedule/own_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "ddip/base/error.h"
#include "ddip/schedule/check_list.h"
#include "ddip/schedule/checker.h"
#include "ddip/schedule/counts.h"
#include "ddip/schedule/segments.h"

namespace ddip::schedule {
namespace {

template <class T>
void require_same(const char* what, const T& theirs, const T& here) {
  if (theirs != here) throw ConfigError(fmt::format("the plan has {}={}, this run {}", what, theirs, here));
}

std::vector<std::pair<int, int>> pairs_of(const std::vector<Edge>& edges) {
  std::vector<std::pair<int, int>> found;
  for (const auto& [from, to] : edges) found.emplace_back(from, to);
  return found;
}

std::string in_words(const Needs& needs) {
  if (needs.perturbs) return "weights with noise";
  if (needs.predicts && needs.stashes) return "predicted weights, which it keeps";
  return needs.predicts ? "predicted weights" : needs.stashes ? "weights that it keeps" : "the newest weights";
}

// Batches are read one after the other.
void require_batches_in_order(const Plan& own) {
  for (size_t rank = 0; rank < own.ranks.size(); ++rank) {
    std::map<int, int64_t> newest;  // by stage
    for (size_t index = 0; index < own.ranks[rank].size(); ++index) {
      const Action& action = own.ranks[rank][index];
      const bool reads = action.stage == 0 || action.stage == own.request.stages - 1;
      if (action.kind != Kind::forward || !reads) continue;
      int64_t& batch = newest[action.stage];
      const int64_t next = action.micro_batch / own.request.micro_batches;
      if (next < batch)
        throw ConfigError(fmt::format("{} goes back from batch {} to batch {}: they are read one after the other",
                                      place(own, rank, index), batch, next));
      batch = next;
    }
  }
}

// The checker knows no waiting in a step. With nothing of one step's micro-batches beyond the last step of its rank,
// and nothing of the next one's before it, all ranks come there whatever they wait for.
void require_steps_apart(const Plan& own) {
  const std::vector<int64_t> ends = step_ends(own.request);
  for (size_t rank = 0; rank < own.ranks.size(); ++rank) {
    const auto stages = std::ranges::count(own.request.rank_of_stage, static_cast<int>(rank));
    int64_t steps = 0;
    for (size_t index = 0; index < own.ranks[rank].size(); ++index) {
      const Action& action = own.ranks[rank][index];
      if (action.kind == Kind::step) ++steps;
      if (action.kind == Kind::step || action.kind == Kind::drain || action.kind == Kind::retire) continue;
      const auto own_step = std::ranges::upper_bound(ends, action.micro_batch) - ends.begin();
      if (own_step != steps / stages)
        throw ConfigError(fmt::format(
            "{} is on the other side of a step, in which all stages wait for each other's gradients; expected all of a "
            "step's micro-batches before it and no others, or clipping=\"local\"",
            place(own, rank, index)));
    }
  }
}

}  // namespace

void require_runnable(const Plan& own, const Plan& usual, const Prepared& pipeline) {
  const Request &theirs = own.request, &here = usual.request;
  require_same("schedule", theirs.schedule, here.schedule);
  require_same("stages", theirs.stages, here.stages);
  require_same("rank_of_stage", theirs.rank_of_stage, here.rank_of_stage);
  require_same("edges", pairs_of(theirs.edges), pairs_of(here.edges));
  require_same("micro_batches", theirs.micro_batches, here.micro_batches);
  require_same("batches", theirs.batches, here.batches);
  require_same("last_batch", theirs.last_batch, here.last_batch);
  require_same("accumulate", theirs.accumulate, here.accumulate);
  require_same("max_staleness", theirs.max_staleness, here.max_staleness);
  require_same("warmup", theirs.warmup, here.warmup);
  require_same("flush_every", theirs.flush_every, here.flush_every);
  require_same("switch_at", theirs.switch_at, here.switch_at);
  require_same("order", theirs.order, here.order);
  if (here.order != "plan") throw ConfigError("a plan has an order; with order=\"ready\" it is found while it runs");
  if (theirs.needs != here.needs)
    throw ConfigError(
        fmt::format("the plan is for another staleness policy: a stale forward has {} in it, and {} in the pipeline; "
                    "expected a plan "
                    "that begins as the pipeline's own plan_of(batches)",
                    in_words(theirs.needs), in_words(here.needs)));
  if (const Verdict verdict = check(own); !verdict.ok())
    throw ConfigError(fmt::format("the plan is refused: {}", verdict.error));
  require_batches_in_order(own);
  if (pipeline.steps_meet) require_steps_apart(own);
  const std::vector<int> stale = most_staleness(own);
  for (size_t stage = 0; stage < stale.size(); ++stage) {
    if (stale[stage] > pipeline.most_stale.at(stage))
      throw ConfigError(
          fmt::format("the plan has weights of stage {} that are {} steps old, the pipeline at most {}; expected a "
                      "pipeline with a window as wide as the plan's",
                      stage, stale[stage], pipeline.most_stale[stage]));
  }
}

}  // namespace ddip::schedule
