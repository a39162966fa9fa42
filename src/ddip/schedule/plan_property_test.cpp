// Thousands of requests against rules that are written down here a second time, as the literature states them.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <map>
#include <set>

#include "ddip/schedule/checker.h"
#include "ddip/schedule/segments.h"
#include "ddip/schedule/simulate.h"
#include "ddip/schedule/testing/random_request.h"

namespace ddip::schedule {
namespace {

std::vector<Action> of_stage(const Plan& plan, int stage) {
  std::vector<Action> found;
  for (const auto& actions : plan.ranks)
    for (const Action& action : actions)
      if (action.stage == stage || action.kind == Kind::drain) found.push_back(action);
  return found;
}

void passes_every_stage_once(const Plan& plan) {
  for (int stage = 0; stage < plan.request.stages; ++stage) {
    std::map<Kind, std::multiset<int64_t>> seen;
    for (const Action& action : of_stage(plan, stage))
      if (action.stage == stage) seen[action.kind].insert(action.micro_batch);
    std::multiset<int64_t> all;
    for (int64_t micro_batch = 0; micro_batch < plan.request.total(); ++micro_batch) all.insert(micro_batch);
    RC_ASSERT(seen[Kind::forward] == all);
    RC_ASSERT(seen[Kind::backward] == all);
    const bool split = plan.request.schedule == "zb1" || plan.request.schedule == "zbv";
    RC_ASSERT(seen[Kind::weight_gradient] == (split ? all : std::multiset<int64_t>{}));
  }
}

// PIPELINE's table: forward iff F < N and …; otherwise it has to be a backward.
void follows_the_table(const Plan& plan) {
  const Request& request = plan.request;
  if (request.warmup > 0 || request.flush_every > 0 || request.switch_at >= 0) return;
  const int64_t all = request.total(), m = request.micro_batches;
  for (int stage = 0; stage < request.stages; ++stage) {
    const int window = request.window[static_cast<size_t>(stage)];
    int64_t forwards = 0, backwards = 0;
    for (const Action& action : of_stage(plan, stage)) {
      if (action.kind != Kind::forward && action.kind != Kind::backward) continue;
      bool may = forwards < all;
      const bool same_batch = forwards / m == backwards / m;
      if (request.schedule == "seq")
        may &= forwards == backwards;
      else if (request.schedule == "gpipe")
        may &= same_batch;
      else if (request.schedule == "1f1b")
        may &= same_batch && forwards - backwards <= window;
      else if (!is_synchronous(request.schedule))
        may &= forwards - backwards <= window;
      else
        return;
      RC_ASSERT((action.kind == Kind::forward) == may);
      if (action.kind == Kind::forward) {
        RC_ASSERT(action.micro_batch == forwards++);
      } else {
        const int64_t batch_end = std::min((backwards / m + 1) * m, all);
        const int64_t from_the_end = backwards / m * m + batch_end - 1 - backwards;
        RC_ASSERT(action.micro_batch == (request.schedule == "gpipe" ? from_the_end : backwards));
        ++backwards;
      }
    }
  }
}

// n = #{ y in [B, F) : y mod se = se - 1 }, for a forward that reads the newest weights.
void has_the_staleness_of_the_formula(const Plan& plan) {
  const Request& request = plan.request;
  if (request.warmup > 0 || request.flush_every > 0 || request.switch_at >= 0) return;
  const int64_t se = request.accumulate;
  for (int stage = 0; stage < request.stages; ++stage) {
    int64_t forwards = 0, backwards = 0;
    for (const Action& action : of_stage(plan, stage)) {
      if (action.kind == Kind::backward) ++backwards;
      if (action.kind != Kind::forward) continue;
      int expected = 0;
      if (request.schedule == "2bw")
        expected = forwards / se > 0 ? 1 : 0;
      else if (!is_synchronous(request.schedule))
        for (int64_t y = backwards; y < forwards; ++y) expected += y % se == se - 1 ? 1 : 0;
      RC_ASSERT(action.staleness == expected);
      ++forwards;
    }
  }
}

// One step for each full group of gradients, and one for what is left before every drain.
void steps_when_it_should(const Plan& plan) {
  const Request& request = plan.request;
  const int64_t m = request.micro_batches;
  for (int stage = 0; stage < request.stages; ++stage) {
    int64_t done = 0, since = 0, steps = 0;
    bool owes = false;
    for (const Action& action : of_stage(plan, stage)) {
      if (action.kind == Kind::drain) RC_ASSERT(since == 0);
      if (action.stage != stage) continue;
      const bool split = splits_backward(request.schedule);
      if (action.kind == (split ? Kind::weight_gradient : Kind::backward)) {
        RC_ASSERT(!owes);
        ++done, ++since;
        const bool batch_ends = done % m == 0 || done == request.total();
        const bool synchronous = is_synchronous(request.schedule);
        // The batch that this micro-batch is in, in order of finishing: gpipe finishes it backwards.
        const int64_t batch = (done - 1) / m;
        const bool phase =
            synchronous || batch < request.warmup || (request.switch_at >= 0 && batch >= request.switch_at);
        if (synchronous)
          owes = batch_ends && since > (request.accumulate - 1) * m;
        else
          owes = since >= request.accumulate && (!phase || batch_ends);
      }
      if (action.kind == Kind::step) {
        RC_ASSERT(action.version == ++steps);
        RC_ASSERT(action.micro_batch == done - 1);
        since = 0;
        owes = false;
      }
    }
    RC_ASSERT(done == request.total());
  }
}

void keeps_few_versions(const Plan& plan, const Verdict& verdict) {
  const Request& request = plan.request;
  for (size_t stage = 0; stage < verdict.versions.size(); ++stage) {
    const int steps_ahead = (request.window[stage] + request.accumulate - 1) / request.accumulate;
    if (is_synchronous(request.schedule)) RC_ASSERT(verdict.staleness[stage] == 0);
    if (request.needs.perturbs)
      RC_ASSERT(verdict.versions[stage] == verdict.activations[stage] + 1);
    else if (!request.needs.stashes)
      RC_ASSERT(verdict.versions[stage] == 1);
    else if (request.schedule == "2bw")
      RC_ASSERT(verdict.versions[stage] <= (request.needs.predicts ? 4 : 2));
    else
      // Predicted ones differ by version and by what they are predicted for; both only grow: a path of 2s + 1.
      RC_ASSERT(verdict.versions[stage] <= (request.needs.predicts ? 2 * steps_ahead + 2 : steps_ahead + 1));
    if (request.schedule == "1f1b" || !is_synchronous(request.schedule)) {
      if (request.schedule != "2bw" && !is_synchronous(request.schedule))
        RC_ASSERT(verdict.staleness[stage] <= steps_ahead);
      RC_ASSERT(verdict.activations[stage] <= request.window[stage] + 1);
    }
  }
}

TEST(PlanProperty, every_plan_is_right) {
  EXPECT_TRUE(holds("every plan is right", 4000, [] {
    const Plan plan = make_plan(random_request({}));
    log_plan(plan);
    const Verdict verdict = check(plan);
    RC_LOG() << verdict.error;
    RC_ASSERT(verdict.ok());
    RC_ASSERT(verdict.deadlock_free && verdict.stall_free);
    passes_every_stage_once(plan);
    follows_the_table(plan);
    has_the_staleness_of_the_formula(plan);
    steps_when_it_should(plan);
    keeps_few_versions(plan, verdict);
    for (size_t channel = 0; channel < plan.capacity.size(); ++channel)
      RC_ASSERT(verdict.frames[channel] <= verdict.frames_ever[channel]);
  }));
}

TEST(PlanProperty, a_plan_survives_its_file) {
  EXPECT_TRUE(holds("a plan survives its file", 2000, [] {
    const Plan plan = make_plan(random_request({.stages = 4, .micro_batches = 4, .batches = 3}));
    const std::string text = to_json(plan);
    const Plan again = from_json(text);
    RC_ASSERT(again.ranks == plan.ranks);
    RC_ASSERT(again.capacity == plan.capacity);
    RC_ASSERT(to_json(again) == text);
  }));
}

// Nothing can be done in less than the busiest rank's work, nor than one micro-batch's way there and back.
TEST(PlanProperty, no_simulation_is_faster_than_its_work) {
  EXPECT_TRUE(holds("no simulation is faster than its work", 2000, [] {
    const Plan plan = make_plan(random_request({}));
    const Simulation found = simulate(plan);
    for (const double share : found.utilisation) RC_ASSERT(share <= 1 + 1e-9);
    double there_and_back = 0;
    std::vector<double> reached(static_cast<size_t>(plan.request.stages), 0);
    for (int stage = 0; stage < plan.request.stages; ++stage) {
      double& mine = reached[static_cast<size_t>(stage)];
      for (size_t edge = 0; edge < plan.request.edges.size(); ++edge)
        if (plan.request.edges[edge].to == stage)
          mine = std::max(mine, reached[static_cast<size_t>(plan.request.edges[edge].from)] +
                                    2 * plan.request.message_time(static_cast<int>(edge)));
      const StageCost cost = plan.request.costs.stage(stage);
      mine += cost.forward + cost.backward;
      there_and_back = std::max(there_and_back, mine);
    }
    RC_ASSERT(found.makespan >= there_and_back - 1e-9);
    RC_ASSERT(found.bubble >= -1e-9 && found.inner_bubble <= found.bubble + 1e-9);
  }));
}

}  // namespace
}  // namespace ddip::schedule
