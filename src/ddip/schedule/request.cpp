#include "ddip/schedule/request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"

namespace ddip::schedule {
namespace {

constexpr int kMostStages = 4096;
constexpr int64_t kMostMicroBatches = 10'000'000;
constexpr int64_t kMostWork = 5'000'000;  // micro-batches times stages: a list of about a gigabyte

void require_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    throw ConfigError(fmt::format("{}={}: expected {} to {}", name, value, least, most));
}

template <class Values>
void require_size(const char* name, const Values& values, size_t expected, const char* of) {
  if (!values.empty() && values.size() != expected)
    throw ConfigError(
        fmt::format("{} has {} entries: expected {}, one for each {}", name, values.size(), expected, of));
}

void check_ranks(Request& request) {
  const auto stages = static_cast<size_t>(request.stages);
  if (request.rank_of_stage.empty()) {
    if (request.schedule == "interleaved")
      throw ConfigError("interleaved: rank_of_stage is missing; expected stage i on rank i modulo the ranks");
    for (int stage = 0; stage < request.stages; ++stage)
      request.rank_of_stage.push_back(request.schedule == "zbv" ? std::min(stage, request.stages - 1 - stage) : stage);
  }
  require_size("rank_of_stage", request.rank_of_stage, stages, "stage");
  std::vector<bool> used(stages, false);
  for (const int rank : request.rank_of_stage) {
    require_range("rank_of_stage", rank, 0, request.stages - 1);
    used[static_cast<size_t>(rank)] = true;
  }
  for (int rank = 0; rank < request.ranks(); ++rank)
    if (!used[static_cast<size_t>(rank)]) throw ConfigError(fmt::format("rank_of_stage: rank {} has no stage", rank));
}

void check_edges(Request& request) {
  if (request.edges.empty()) request.edges = chain_of(request.stages);
  std::vector<bool> fed(static_cast<size_t>(request.stages), false), heard(static_cast<size_t>(request.stages), false);
  for (size_t index = 0; index < request.edges.size(); ++index) {
    const auto& [from, to] = request.edges[index];
    if (from < 0 || to >= request.stages || from >= to)
      throw ConfigError(fmt::format("edge {} -> {}: expected a stage and a later one of {}", from, to, request.stages));
    if (std::find(request.edges.begin(), request.edges.begin() + static_cast<ptrdiff_t>(index), request.edges[index]) !=
        request.edges.begin() + static_cast<ptrdiff_t>(index))
      throw ConfigError(fmt::format("edge {} -> {} is there twice", from, to));
    heard[static_cast<size_t>(from)] = fed[static_cast<size_t>(to)] = true;
  }
  for (int stage = 0; stage < request.stages; ++stage) {
    if (stage > 0 && !fed[static_cast<size_t>(stage)])
      throw ConfigError(fmt::format("edges: nothing leads to stage {}", stage));
    if (stage + 1 < request.stages && !heard[static_cast<size_t>(stage)])
      throw ConfigError(fmt::format("edges: nothing leads on from stage {}", stage));
  }
}

void check_window(Request& request) {
  require_size("window", request.window, static_cast<size_t>(request.stages), "stage");
  if (request.window.empty()) request.window = depths(request);
  for (const int ahead : request.window) require_range("window", ahead, 0, kMostMicroBatches);
  // A stage that begins more than the one before it would wait for micro-batches that wait for its backwards.
  for (const auto& [from, to] : request.edges)
    if (request.window[static_cast<size_t>(from)] < request.window[static_cast<size_t>(to)])
      throw ConfigError(fmt::format("window {}: stage {} may not run further ahead than stage {}, which feeds it",
                                    request.window, to, from));
}

void check_costs(const Request& request) {
  require_size("costs", request.costs.stages, static_cast<size_t>(request.stages), "stage");
  require_size("links", request.costs.links, request.edges.size(), "edge");
  const auto check = [](double cost) {
    if (!std::isfinite(cost) || cost < 0) throw ConfigError(fmt::format("cost {}: expected a time from 0", cost));
  };
  for (const StageCost& cost : request.costs.stages)
    for (const double time : {cost.forward, cost.backward, cost.weight_gradient, cost.step, cost.predict}) check(time);
  for (const double time : request.costs.links) check(time);
}

void check_phases(const Request& request) {
  require_range("warmup", request.warmup, 0, kMostMicroBatches);
  require_range("flush_every", request.flush_every, 0, kMostMicroBatches);
  require_range("max_staleness", request.max_staleness, -1, kMostMicroBatches);
  require_range("switch_at", request.switch_at, -1, kMostMicroBatches);
  if (request.switch_at >= 0 && request.switch_at < request.warmup)
    throw ConfigError(fmt::format("switch_at={}: the synchronous warm-up lasts longer ({} batches)", request.switch_at,
                                  request.warmup));
}

void check_schedule(const Request& request) {
  const int ranks = request.ranks();
  if (request.schedule == "interleaved") {
    for (int stage = 0; stage < request.stages; ++stage)
      if (request.rank_of_stage[static_cast<size_t>(stage)] != stage % ranks || request.stages % ranks != 0)
        throw ConfigError(
            fmt::format("interleaved: rank_of_stage {}: expected stage i on rank i modulo {}, as many on each",
                        request.rank_of_stage, ranks));
    for (const int batch : {request.micro_batches, request.last_batch})
      if (batch % ranks != 0)
        throw ConfigError(
            fmt::format("interleaved: {} micro-batches: expected a multiple of the {} ranks", batch, ranks));
  }
  if (request.schedule == "zbv")
    for (int stage = 0; stage < request.stages; ++stage)
      if (request.stages % 2 != 0 ||
          request.rank_of_stage[static_cast<size_t>(stage)] != std::min(stage, request.stages - 1 - stage))
        throw ConfigError(fmt::format("zbv: rank_of_stage {}: expected the V, stage i with stage {}-i",
                                      request.rank_of_stage, request.stages - 1));
  if (request.schedule == "virtual_async") {
    if (request.max_staleness < 0)
      throw ConfigError("virtual_async: max_staleness is missing; expected a number from 0");
  } else if (request.max_staleness >= 0) {
    throw ConfigError(
        fmt::format("max_staleness={}: only virtual_async has it, not {}", request.max_staleness, request.schedule));
  }
}

void check_order(const Request& request) {
  static const std::vector<std::string> names = {"plan", "ready"};
  if (request.order == "plan") return;
  if (request.order != "ready")
    throw ConfigError(
        fmt::format("order={:?}: expected plan or ready{}", request.order, did_you_mean(request.order, names)));
  if (is_synchronous(request.schedule) || reads_one_step_behind(request.schedule))
    throw ConfigError(
        fmt::format("order=\"ready\": {} has one order; expected async_1f1b, virtual_async or paci", request.schedule));
  const std::set<int> ranks(request.rank_of_stage.begin(), request.rank_of_stage.end());
  if (ranks.size() != request.rank_of_stage.size())
    throw ConfigError("order=\"ready\": several stages are on one rank; expected a rank for each");
}

// In the others a prediction and a stash may already have other weights in mind.
void check_needs(const Request& request) {
  if (request.needs.perturbs && !is_synchronous(request.schedule))
    throw ConfigError(fmt::format("perturbs: {} is asynchronous; expected a synchronous schedule", request.schedule));
}

}  // namespace

int Request::ranks() const {
  return rank_of_stage.empty() ? stages : *std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1;
}

int64_t Request::total() const { return (batches - 1) * micro_batches + (last_batch > 0 ? last_batch : micro_batches); }

bool Request::crosses(int edge) const {
  const auto& [from, to] = edges.at(static_cast<size_t>(edge));
  return rank_of_stage.at(static_cast<size_t>(from)) != rank_of_stage.at(static_cast<size_t>(to));
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"seq", "gpipe",      "1f1b",          "interleaved", "zb1",
                                                 "zbv", "async_1f1b", "virtual_async", "2bw",         "paci"};
  return names;
}

bool is_synchronous(const std::string& schedule) {
  return schedule != "async_1f1b" && schedule != "virtual_async" && schedule != "2bw" && schedule != "paci";
}

bool splits_backward(const std::string& schedule) { return schedule == "zb1" || schedule == "zbv"; }

bool reads_one_step_behind(const std::string& schedule) { return schedule == "2bw"; }

std::vector<int> depths(const Request& request) {
  std::vector<int> depth(static_cast<size_t>(request.stages), 0);
  for (int stage = request.stages - 1; stage >= 0; --stage)
    for (const auto& [from, to] : request.edges)
      if (from == stage)
        depth[static_cast<size_t>(from)] =
            std::max(depth[static_cast<size_t>(from)], depth[static_cast<size_t>(to)] + 1);
  return depth;
}

std::vector<Edge> chain_of(int stages) {
  std::vector<Edge> edges;
  for (int stage = 0; stage + 1 < stages; ++stage) edges.push_back({stage, stage + 1});
  return edges;
}

Request completed(Request request) {
  const auto& names = schedule_names();
  if (std::find(names.begin(), names.end(), request.schedule) == names.end())
    throw ConfigError(fmt::format("schedule {:?}: expected one of {}{}", request.schedule, fmt::join(names, ", "),
                                  did_you_mean(request.schedule, names)));
  require_range("stages", request.stages, 1, kMostStages);
  require_range("micro_batches", request.micro_batches, 1, kMostMicroBatches);
  require_range("batches", request.batches, 1, kMostMicroBatches / request.micro_batches);
  require_range("last_batch", request.last_batch, 0, request.micro_batches);
  require_range("accumulate", request.accumulate, 1, kMostMicroBatches);
  if (request.last_batch == 0) request.last_batch = request.micro_batches;
  if (request.total() > kMostWork / request.stages)
    throw ConfigError(fmt::format("{} micro-batches on {} stages: a plan has at most {} of both together; cut the run",
                                  request.total(), request.stages, kMostWork));
  check_ranks(request);
  check_edges(request);
  check_window(request);
  check_costs(request);
  check_phases(request);
  check_schedule(request);
  check_order(request);
  check_needs(request);
  require_size("capacity", request.capacity, request.edges.size() * 2, "edge and direction");
  for (const int frames : request.capacity) require_range("capacity", frames, 0, kMostMicroBatches);
  return request;
}

}  // namespace ddip::schedule
