// Requests of all kinds that make_plan accepts, for property tests.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "ddip/schedule/file.h"
#include "ddip/schedule/window.h"

namespace ddip::schedule {

struct Sizes {
  int stages = 6;
  int micro_batches = 9;
  int batches = 5;
};

// The whole range from the first case on, not smaller ones first: most that is interesting needs some length.
inline int between(int least, int most) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(least, most + 1));
}
inline bool one_in(int count) { return between(1, count) == 1; }

// rc::check with more cases than its hundred.
template <class Property>
bool holds(const std::string& name, int times, Property property) {
  rc::detail::TestMetadata metadata;
  metadata.id = metadata.description = name;
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = std::max(params.maxSuccess, times);
  const auto result = rc::detail::checkTestable(property, metadata, params);
  rc::detail::printResultMessage(result, std::cerr);
  std::cerr << std::endl;
  return result.template is<rc::detail::SuccessResult>();
}

// A chain with skips, or any graph in which every stage is fed and heard.
inline std::vector<Edge> random_edges(int stages) {
  std::vector<Edge> edges;
  const auto add = [&](Edge edge) {
    if (std::find(edges.begin(), edges.end(), edge) == edges.end()) edges.push_back(edge);
  };
  const bool chain = !one_in(3);
  for (int stage = 1; stage < stages; ++stage) add({chain ? stage - 1 : between(0, stage - 1), stage});
  for (int stage = 0; stage + 1 < stages; ++stage)
    if (std::none_of(edges.begin(), edges.end(), [&](const Edge& edge) { return edge.from == stage; }))
      add({stage, between(stage + 1, stages - 1)});
  if (stages > 2)
    for (int skips = between(0, 2); skips > 0; --skips) {
      const int from = between(0, stages - 2);
      add({from, between(from + 1, stages - 1)});
    }
  return edges;
}

inline std::vector<int> random_placement(int stages) {
  std::vector<int> ranks;
  int used = 0;
  for (int stage = 0; stage < stages; ++stage) {
    ranks.push_back(between(0, used));
    used = std::max(used, ranks.back() + 1);
  }
  return ranks;
}

inline void random_phases(Request& request) {
  if (one_in(3)) request.warmup = between(0, static_cast<int>(request.batches));
  if (one_in(3)) request.flush_every = between(1, 3);
  if (one_in(3)) request.switch_at = request.warmup + between(0, 3);
}

inline Request random_request(const Sizes& most) {
  Request request;
  request.schedule = *rc::gen::elementOf(schedule_names());
  request.stages = between(1, most.stages);
  request.micro_batches = between(1, most.micro_batches);
  request.batches = between(1, most.batches);
  request.accumulate = between(1, 5);
  if (request.schedule == "zbv") {
    request.stages = 2 * between(1, std::max(1, most.stages / 2));
  } else if (request.schedule == "interleaved") {
    const int ranks = between(1, std::max(1, most.stages / 2)), chunks = between(1, 3);
    request.stages = ranks * chunks;
    for (int stage = 0; stage < request.stages; ++stage) request.rank_of_stage.push_back(stage % ranks);
    request.micro_batches = ranks * between(1, std::max(1, most.micro_batches / ranks));
  } else if (one_in(2)) {
    request.rank_of_stage = random_placement(request.stages);
  }
  if (request.schedule != "interleaved" && one_in(3)) request.last_batch = between(1, request.micro_batches);
  if (one_in(2)) request.edges = random_edges(request.stages);
  if (request.schedule == "virtual_async") request.max_staleness = between(0, request.stages);
  if (request.schedule == "2bw" || request.schedule == "paci") request.accumulate = request.stages + between(0, 3);
  random_phases(request);
  request = completed(request);
  if (one_in(2)) {
    for (int stage = 0; stage < request.stages; ++stage)
      request.costs.stages.push_back(
          {between(1, 4) * 0.5, between(1, 4) * 0.5, between(0, 4) * 0.5, between(0, 1) * 0.25, 0});
    for (size_t edge = 0; edge < request.edges.size(); ++edge) request.costs.links.push_back(between(0, 6) * 0.5);
  }
  if (one_in(2)) request.window = default_window(request);
  if (one_in(4))
    for (int& ahead : request.window) ahead = std::max(0, ahead + 2);
  if (is_synchronous(request.schedule))
    request.needs.perturbs = one_in(3);
  else
    request.needs = {.predicts = one_in(2), .stashes = one_in(2)};
  return request;
}

// Shown when a property fails: it can be run again from there.
inline void log_plan(const Plan& plan) { RC_LOG() << to_json(plan); }

}  // namespace ddip::schedule
