#include "ddip/schedule/own_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ddip/base/error.h"
#include "ddip/schedule/checker.h"
#include "ddip/schedule/counts.h"

namespace ddip::schedule {
namespace {

template <class T>
void require_same(const char* what, const T& theirs, const T& here) {
  if (theirs != here) throw ConfigError(fmt::format("the plan has {}={}, the pipeline {}", what, theirs, here));
}

std::vector<std::pair<int, int>> pairs_of(const std::vector<Edge>& edges) {
  std::vector<std::pair<int, int>> found;
  for (const auto& [from, to] : edges) found.emplace_back(from, to);
  return found;
}

std::string in_words(const Needs& needs) {
  return fmt::format("predictions {}, stashes {}, noise {}", needs.predicts, needs.stashes, needs.perturbs);
}

}  // namespace

void require_runnable(const Plan& own, const Plan& usual, const std::vector<int>& most_stale) {
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
  require_same("needs", in_words(theirs.needs), in_words(here.needs));
  if (const Verdict verdict = check(own); !verdict.ok())
    throw ConfigError(fmt::format("the plan is refused: {}", verdict.error));
  const std::vector<int> stale = most_staleness(own);
  for (size_t stage = 0; stage < stale.size(); ++stage) {
    if (stale[stage] > most_stale.at(stage))
      throw ConfigError(
          fmt::format("the plan has weights of stage {} that are {} steps old, the pipeline at most {}; expected a "
                      "pipeline with a window as wide as the plan's",
                      stage, stale[stage], most_stale[stage]));
  }
}

}  // namespace ddip::schedule
