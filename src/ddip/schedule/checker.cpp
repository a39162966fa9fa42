#include "ddip/schedule/checker.h"

#include <fmt/format.h>

#include <algorithm>

#include "ddip/base/error.h"
#include "ddip/schedule/check_list.h"
#include "ddip/schedule/counts.h"
#include "ddip/schedule/run.h"

namespace ddip::schedule {
namespace {

void check_shape(const Plan& plan) {
  const auto stages = static_cast<size_t>(plan.request.stages);
  const auto expect = [](const char* what, size_t found, size_t expected) {
    if (found != expected) throw ConfigError(fmt::format("the plan has {} {}: expected {}", found, what, expected));
  };
  expect("ranks", plan.ranks.size(), static_cast<size_t>(plan.request.ranks()));
  expect("channel capacities", plan.capacity.size(), plan.request.edges.size() * 2);
  if (!plan.activations.empty()) expect("bounds of activations", plan.activations.size(), stages);
  if (!plan.versions.empty()) expect("bounds of versions", plan.versions.size(), stages);
  // Before anything is counted for them: a file may promise more micro-batches than anybody has memory for.
  size_t actions = 0;
  for (const auto& list : plan.ranks) actions += list.size();
  const size_t least = static_cast<size_t>(plan.request.total()) * stages * 2;
  if (actions < least)
    throw ConfigError(fmt::format("the plan has {} actions: {} micro-batches on {} stages need {} at least", actions,
                                  plan.request.total(), stages, least));
  for (const int frames : plan.capacity)
    if (frames < 0) throw ConfigError(fmt::format("capacity {}: expected a number from 0", frames));
}

struct Message {
  size_t rank = 0, index = 0;
  int64_t micro_batch = 0;
};

// What was sent is received, in this order.
void check_channels(const Plan& plan) {
  std::vector<std::vector<Message>> sent(plan.capacity.size()), received(plan.capacity.size());
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (size_t index = 0; index < plan.ranks[rank].size(); ++index) {
      const Action& action = plan.ranks[rank][index];
      const size_t channel = action.edge < 0 ? 0 : channel_of(action.edge, action.direction == Direction::gradient);
      if (action.kind == Kind::send) sent[channel].push_back({rank, index, action.micro_batch});
      if (action.kind == Kind::receive) received[channel].push_back({rank, index, action.micro_batch});
    }
  for (size_t channel = 0; channel < sent.size(); ++channel) {
    const auto& out = sent[channel];
    const auto& in = received[channel];
    for (size_t message = 0; message < std::max(out.size(), in.size()); ++message) {
      if (message >= in.size())
        throw ConfigError(place(plan, out[message].rank, out[message].index) + ": nobody receives it");
      if (message >= out.size())
        throw ConfigError(place(plan, in[message].rank, in[message].index) + ": nobody sends it");
      if (out[message].micro_batch != in[message].micro_batch)
        throw ConfigError(fmt::format("{}: what comes is micro-batch {}, from rank {}, action {}",
                                      place(plan, in[message].rank, in[message].index), out[message].micro_batch,
                                      out[message].rank, out[message].index));
    }
  }
}

// The rank at the other end of what this action waits for.
size_t waits_for(const Request& request, const Action& action) {
  const auto& [from, to] = request.edges[static_cast<size_t>(action.edge)];
  return static_cast<size_t>(request.rank_of_stage[static_cast<size_t>(action.stage == from ? to : from)]);
}

// "rank 0, action 5 (send …) waits for rank 1, action 3 (send …) waits for rank 0": the circle, from its lowest rank.
std::string circle(const Plan& plan, const Run& stuck) {
  const auto at = [&](size_t rank) { return stuck.ranks[rank].size(); };
  size_t rank = 0;
  while (at(rank) == plan.ranks[rank].size()) ++rank;
  // After as many hops as there are ranks we are inside the circle.
  const auto next = [&](size_t here) { return waits_for(plan.request, plan.ranks[here][at(here)]); };
  const auto ends = [&](size_t here) { return at(here) == plan.ranks[here].size(); };
  for (size_t hop = 0; hop < plan.ranks.size() && !ends(next(rank)); ++hop) rank = next(rank);
  std::vector<size_t> around = {rank};
  while (!ends(next(around.back())) && next(around.back()) != rank) around.push_back(next(around.back()));
  std::rotate(around.begin(), std::min_element(around.begin(), around.end()), around.end());
  std::string text;
  for (const size_t here : around) text += place(plan, here, at(here)) + " waits for ";
  return fmt::format("{}rank {}: nobody can go on", text, next(around.back()));
}

void check_bounds(const char* what, const std::vector<int>& counted, const std::vector<int>& bounds) {
  for (size_t stage = 0; stage < bounds.size(); ++stage)
    if (counted[stage] > bounds[stage])
      throw ConfigError(fmt::format("stage {}: {} {} are alive at once: expected at most {}", stage, counted[stage],
                                    what, bounds[stage]));
}

}  // namespace

Verdict check(const Plan& plan) {
  Verdict verdict;
  try {
    const Request request = completed(plan.request);
    if (request.rank_of_stage != plan.request.rank_of_stage || request.edges != plan.request.edges ||
        request.last_batch != plan.request.last_batch || request.window != plan.request.window) {
      Plan whole = plan;
      whole.request = request;
      return check(whole);
    }
    check_shape(plan);
    for (size_t rank = 0; rank < plan.ranks.size(); ++rank) check_list(plan, rank);
    check_channels(plan);
    const Run bounded = run(plan, plan.request.costs, plan.capacity);
    verdict.deadlock_free = bounded.finished;
    if (!bounded.finished) throw ConfigError(circle(plan, bounded));
    verdict.frames = run(plan, plan.request.costs, {}).most_frames;
    verdict.frames_ever = most_frames_ever(plan);
    verdict.stall_free = true;
    for (size_t channel = 0; channel < plan.capacity.size(); ++channel)
      verdict.stall_free &= verdict.frames[channel] <= plan.capacity[channel];
    verdict.activations = most_activations(plan);
    verdict.versions = most_versions(plan);
    verdict.staleness = most_staleness(plan);
    check_bounds("micro-batches", verdict.activations, plan.activations);
    check_bounds("versions", verdict.versions, plan.versions);
  } catch (const ConfigError& error) {
    verdict.error = error.what();
  }
  return verdict;
}

void require_right(const Plan& plan) {
  const Verdict verdict = check(plan);
  if (!verdict.ok()) throw ConfigError(verdict.error);
}

}  // namespace ddip::schedule
