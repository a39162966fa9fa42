#include "ddip/pipeline/after_failure.h"

#include <fmt/format.h>

#include <set>

#include "ddip/pipeline/tensor_hash.h"

namespace ddip::pipeline {
namespace {

using nlohmann::json;

// By stage: the replica whose state all get. Stages in which they are equal are not in it.
std::map<int, int> furthest_of(const RankOnDisk& rank) {
  json mine = json::array();
  for (const StageOnDisk& stage : rank.stages) {
    if (stage.versions)
      mine.push_back({stage.index, stage.stepping->steps(), hash_of({stage.versions->weights().truth()})});
  }
  struct Furthest {
    int64_t steps = -1;
    int replica = 0;
    std::set<json> states;
  };
  std::map<int, Furthest> found;
  for (const json& theirs : gather_json(rank.ranks, {rank.settings.replica, mine})) {
    for (const json& stage : theirs[1]) {
      Furthest& one = found[stage[0].get<int>()];
      one.states.insert(stage);
      const auto steps = stage[1].get<int64_t>();
      if (steps <= one.steps) continue;
      one.steps = steps;
      one.replica = theirs[0].get<int>();
    }
  }
  std::map<int, int> furthest;
  for (const auto& [stage, one] : found) {
    if (one.states.size() > 1) furthest[stage] = one.replica;
  }
  return furthest;
}

// Statistics are each replica's own.
void keep_buffers(const StageOnDisk& stage, NamedTensors& state) {
  if (!stage.part->module) return;
  for (const auto& item : stage.part->module->named_buffers()) {
    if (item.value().defined()) state[stage.prefix() + "model." + item.key()] = item.value().detach().cpu();
  }
}

// One replica may know of a step that was too large, or of its norm, and others not yet.
void make_heard_equal(const RankOnDisk& rank) {
  const Heard heard = rank.executor.heard();
  json mine;
  if (heard.scale) mine = {heard.scale->scale, heard.scale->finite};
  json least;
  for (const json& theirs : gather_json(rank.ranks, mine)) {
    if (!theirs.is_null() && (least.is_null() || theirs < least)) least = theirs;
  }
  Heard equal;
  if (heard.scale) equal.scale = {.scale = least[0], .finite = least[1]};
  rank.executor.restore(equal);
}

}  // namespace

std::vector<int> make_replicas_equal(const RankOnDisk& rank) {
  make_heard_equal(rank);
  const std::map<int, int> furthest = furthest_of(rank);
  if (furthest.empty()) return {};
  auto source_of = [&](const StageOnDisk& stage) {
    const auto found = furthest.find(stage.index);
    return found == furthest.end() ? -1 : found->second;
  };
  NamedTensors given;
  agreed(rank.ranks, [&]() -> json {
    for (const StageOnDisk& stage : rank.stages) {
      if (source_of(stage) == rank.settings.replica) given.merge(stage_state(stage));
    }
    return nullptr;
  });
  const NamedTensors everything = gather_tensors(rank.ranks, given);
  std::vector<std::function<void()>> changes;
  agreed(rank.ranks, [&]() -> json {
    for (const StageOnDisk& stage : rank.stages) {
      const int source = source_of(stage);
      if (source < 0 || source == rank.settings.replica) continue;
      NamedTensors state;
      for (const auto& [name, tensor] : everything) {
        if (name.starts_with(stage.prefix())) state[name] = tensor;
      }
      keep_buffers(stage, state);
      SavedTensors saved(std::move(state));
      const auto policy = staleness::make_policy(rank.settings.policy(), rank.settings.options.staleness_options);
      changes.push_back(restored_stage(saved, stage, *policy));
    }
    return nullptr;
  });
  for (const auto& change : changes) change();
  std::vector<int> stages;
  for (const auto& [stage, replica] : furthest) stages.push_back(stage);
  return stages;
}

}  // namespace ddip::pipeline
