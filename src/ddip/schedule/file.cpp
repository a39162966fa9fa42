#include "ddip/schedule/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "ddip/base/error.h"
#include "ddip/base/file.h"
#include "ddip/base/nearest_name.h"
#include "ddip/base/strict_json.h"
#include "ddip/schedule/checker.h"

namespace ddip::schedule {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr int kDeepest = 4;
constexpr uint64_t kLongestFile = uint64_t{1} << 30;

// The names of a file's fields lie in one place for reading and writing: `Visitor` is told each with its variable.
template <class Visitor, class PlanType>
void visit_fields(Visitor&& visit, PlanType& plan) {
  auto& request = plan.request;
  visit("schedule", request.schedule, true);
  visit("stages", request.stages, true);
  visit("rank_of_stage", request.rank_of_stage, false);
  visit("edges", request.edges, false);
  visit("micro_batches", request.micro_batches, true);
  visit("batches", request.batches, true);
  visit("last_batch", request.last_batch, false);
  visit("accumulate", request.accumulate, false);
  visit("window", request.window, false);
  visit("max_staleness", request.max_staleness, false);
  visit("warmup", request.warmup, false);
  visit("flush_every", request.flush_every, false);
  visit("switch_at", request.switch_at, false);
  visit("order", request.order, false);
  visit("predicts", request.needs.predicts, false);
  visit("stashes", request.needs.stashes, false);
  visit("perturbs", request.needs.perturbs, false);
  visit("costs", request.costs.stages, false);
  visit("links", request.costs.links, false);
  visit("capacity", plan.capacity, true);
  visit("activations", plan.activations, false);
  visit("versions", plan.versions, false);
  visit("notes", plan.notes, false);
}

json written(const Edge& edge) { return {edge.from, edge.to}; }
json written(const StageCost& cost) {
  return {cost.forward, cost.backward, cost.weight_gradient, cost.step, cost.predict};
}
template <class T>
json written(const T& value) {
  return value;
}
template <class T>
json written(const std::vector<T>& values) {
  json list = json::array();
  for (const T& value : values) list.push_back(written(value));
  return list;
}

[[noreturn]] void refuse(const std::string& where, const char* expected) {
  throw ConfigError(fmt::format("{}: expected {}", where, expected));
}

void read(const json& value, const std::string& where, int64_t& out) {
  // Unsigned values beyond int64 are numbers too.
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 53))
    refuse(where, "a whole number");
  out = value.get<int64_t>();
}
void read(const json& value, const std::string& where, int& out) {
  int64_t number = 0;
  read(value, where, number);
  if (number < -1 || number > 1 << 30) refuse(where, "a number that is not that large");
  out = static_cast<int>(number);
}
void read(const json& value, const std::string& where, double& out) {
  if (!value.is_number()) refuse(where, "a number");
  out = value.get<double>();
}
void read(const json& value, const std::string& where, bool& out) {
  if (!value.is_boolean()) refuse(where, "true or false");
  out = value.get<bool>();
}
void read(const json& value, const std::string& where, std::string& out) {
  if (!value.is_string()) refuse(where, "text");
  out = value.get<std::string>();
}
void read(const json& value, const std::string& where, Edge& out) {
  if (!value.is_array() || value.size() != 2) refuse(where, "[from, to]");
  read(value[0], where, out.from);
  read(value[1], where, out.to);
}
void read(const json& value, const std::string& where, StageCost& out) {
  if (!value.is_array() || value.size() != 5) refuse(where, "[forward, backward, weight_gradient, step, predict]");
  size_t at = 0;
  for (double* time : {&out.forward, &out.backward, &out.weight_gradient, &out.step, &out.predict})
    read(value[at++], where, *time);
}
template <class T>
void read(const json& value, const std::string& where, std::vector<T>& out) {
  if (!value.is_array()) refuse(where, "a list");
  for (size_t index = 0; index < value.size(); ++index) {
    T item{};
    read(value[index], fmt::format("{}[{}]", where, index), item);
    out.push_back(std::move(item));
  }
}

void read_ranks(const json& value, Plan& plan) {
  if (!value.is_array()) refuse("ranks", "a list of actions for each rank");
  for (size_t rank = 0; rank < value.size(); ++rank) {
    std::vector<std::string> lines;
    read(value[rank], fmt::format("ranks[{}]", rank), lines);
    auto& actions = plan.ranks.emplace_back();
    for (const std::string& line : lines) {
      try {
        actions.push_back(parse_action(line));
      } catch (const ConfigError& error) {
        throw ConfigError(fmt::format("rank {}, action {}: {}", rank, actions.size(), error.what()));
      }
    }
  }
}

Plan plan_of(const json& file) {
  if (!file.is_object() || !file.contains("ddip_plan")) throw ConfigError("it is no plan: \"ddip_plan\" is missing");
  if (file["ddip_plan"] != kFormat) throw ConfigError(fmt::format("ddip_plan: expected {}", kFormat));
  Plan plan;
  std::vector<std::string> known = {"ddip_plan", "ranks"};
  visit_fields(
      [&](const char* name, auto& variable, bool needed) {
        known.emplace_back(name);
        if (file.contains(name))
          read(file[name], name, variable);
        else if (needed)
          throw ConfigError(fmt::format("{} is missing", name));
      },
      plan);
  for (const auto& [key, value] : file.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw ConfigError(fmt::format("{:?} is unknown{}", key, did_you_mean(key, known)));
  if (!file.contains("ranks")) throw ConfigError("ranks is missing");
  read_ranks(file["ranks"], plan);
  plan.request = completed(plan.request);
  require_right(plan);
  return plan;
}

}  // namespace

std::string to_json(const Plan& plan) {
  std::string text = fmt::format("{{\n  \"ddip_plan\": {},\n", kFormat);
  visit_fields([&](const char* name, const auto& variable,
                   bool) { text += fmt::format("  \"{}\": {},\n", name, written(variable).dump()); },
               plan);
  text += "  \"ranks\": [";
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    text += rank == 0 ? "\n    [" : ",\n    [";
    for (size_t index = 0; index < plan.ranks[rank].size(); ++index)
      text += fmt::format("{}\n      \"{}\"", index == 0 ? "" : ",", to_text(plan.ranks[rank][index]));
    text += "\n    ]";
  }
  return text + "\n  ]\n}\n";
}

Plan from_json(std::string_view text) {
  try {
    return plan_of(parse_strict_json(text, kDeepest));
  } catch (const NotJson& error) {
    throw ConfigError(error.what());
  }
}

void save(const Plan& plan, const std::filesystem::path& path) {
  const std::string text = to_json(plan);
  NewFile file(path);
  file.write(std::as_bytes(std::span(text)), 0);
  file.publish();
}

Plan load(const std::filesystem::path& path) {
  const std::string text = read_small_file(path, kLongestFile);
  try {
    return from_json(text);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

}  // namespace ddip::schedule
