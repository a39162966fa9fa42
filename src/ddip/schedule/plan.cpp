#include "ddip/schedule/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ddip/base/error.h"
#include "ddip/schedule/counts.h"
#include "ddip/schedule/messages.h"
#include "ddip/schedule/orders/whole_run.h"
#include "ddip/schedule/ready.h"
#include "ddip/schedule/run.h"
#include "ddip/schedule/segments.h"
#include "ddip/schedule/weights.h"
#include "ddip/schedule/window.h"

namespace ddip::schedule {
namespace {

// At most one step lies between a forward and its backward only if the window is not longer than a step.
void fit_window_into_a_step(Plan& plan) {
  Request& request = plan.request;
  const int depth = depths(request).front();
  const int least = request.schedule == "2bw" ? depth + 1 : std::max(depth, 1);
  if (request.accumulate < least)
    throw ConfigError(fmt::format("{}: accumulate={}: expected at least {}, for {} stages behind one another",
                                  request.schedule, request.accumulate, least, depth + 1));
  const std::vector<int> asked = request.window;
  for (int& ahead : request.window) ahead = std::min(ahead, request.accumulate);
  if (request.window != asked)
    plan.notes.push_back(fmt::format("{}: window {} was cut to {}, since a step has {} micro-batches", request.schedule,
                                     asked, request.window, request.accumulate));
}

// What a name adds to the family that it belongs to.
void apply_preset(Plan& plan) {
  Request& request = plan.request;
  if (request.schedule == "2bw" || request.schedule == "paci") fit_window_into_a_step(plan);
  if (request.schedule == "2bw") request.needs.stashes = true;
  if (request.schedule == "virtual_async") request.window = capped_window(request.window, request.max_staleness);
  if (is_synchronous(request.schedule) && (request.warmup > 0 || request.switch_at >= 0 || request.flush_every > 0))
    plan.notes.push_back(
        fmt::format("{} is synchronous: warmup, switch_at and flush_every change nothing", request.schedule));
}

RankLists computations(const Request& request) {
  RankLists ranks(static_cast<size_t>(request.ranks()));
  int64_t last = -1;
  for (const auto& part : whole_run(request)) {
    for (const Order& order : part)
      for (const Work& work : order) last = std::max(last, work.micro_batch);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const Work& work : part[rank])
        ranks[rank].push_back({.kind = work.kind, .stage = work.stage, .micro_batch = work.micro_batch});
      ranks[rank].push_back({.kind = Kind::drain, .micro_batch = last});
    }
  }
  return ranks;
}

// One more than full speed needs, since nothing is always on time; not more than there are messages between two drains.
std::vector<int> roomy(const Plan& plan) {
  int64_t begin = 0, longest = 0;
  for (const Segment& segment : segments(plan.request)) {
    longest = std::max(longest, segment.end - begin);
    if (segment.drains) begin = segment.end;
  }
  std::vector<int> frames = run(plan, plan.request.costs, {}).most_frames;
  for (int& most : frames)
    if (most > 0) most = static_cast<int>(std::min<int64_t>(most + 1, longest));
  return frames;
}

}  // namespace

Plan make_plan(const Request& request) {
  Plan plan;
  plan.request = completed(request);
  apply_preset(plan);
  plan.ranks = computations(plan.request);
  number_versions(plan.request, plan.ranks);
  insert_policy_actions(plan.request, plan.ranks);
  insert_messages(plan.request, plan.ranks);
  const bool any_order = plan.request.order == "ready";
  if (any_order)
    make_room_for_any_order(plan);
  else
    plan.capacity = plan.request.capacity.empty() ? roomy(plan) : plan.request.capacity;
  insert_retires(plan.request, plan.capacity, plan.ranks);
  if (any_order) return plan;
  plan.activations = most_activations(plan);
  plan.versions = most_versions(plan);
  return plan;
}

}  // namespace ddip::schedule
