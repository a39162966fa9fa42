#include "ddip/staleness/matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"
#include "ddip/staleness/make_policy.h"

namespace ddip::staleness {
namespace {

enum class Delay { none, by_depth, one_everywhere, accepted };

struct Schedule {
  std::string name;
  Delay delay;
};

const std::vector<Schedule> kSchedules = {
    {"seq", Delay::none},
    {"gpipe", Delay::none},
    {"1f1b", Delay::none},
    {"interleaved", Delay::none},
    {"zb1", Delay::none},
    {"zbv", Delay::none},
    {"async_1f1b", Delay::by_depth},
    {"virtual_async", Delay::by_depth},
    {"2bw", Delay::one_everywhere},
    {"paci", Delay::accepted},
};

Verdict refused(std::string why) { return {Fit::refused, std::move(why)}; }
Verdict no_op(std::string why) { return {Fit::no_op, std::move(why)}; }

Verdict synchronous(const std::string& schedule, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    if (part == "spectrain")
      return refused(
          fmt::format("spectrain predicts by the distance between stages, and in {} no weights are stale", schedule));
  if (parts == std::vector<std::string>{"none"}) return {};
  if (parts == std::vector<std::string>{"nesterov"})
    return no_op(fmt::format("in {} no weights are stale: of nesterov only NAdam's large beta1 is left", schedule));
  return no_op(fmt::format("in {} no weights are stale: {} changes nothing", schedule, fmt::join(parts, "+")));
}

// What this one part has against the group, or nothing.
Verdict group_takes(Rule rule, const Group& group, const std::string& part) {
  const bool plain_sgd = rule == Rule::sgd, sgd = plain_sgd || rule == Rule::sutskever;
  const std::string optimizer = name_of(rule);
  if (part == "none" || part == "stash" || part == "pipemare") return {};
  if (group.amsgrad) return refused(fmt::format("{} does not know amsgrad", part));
  if (part == "gap_aware" || part == "aggmsnag") {
    if (rule == Rule::other) return refused(fmt::format("{} does not know this optimizer", part));
    return {};
  }
  if (part == "msnag" || part == "lwp" || part == "spectrain") {
    if (!sgd) return refused(fmt::format("{} is for SGD; for {} use {}", part, optimizer, auto_policy(rule)));
    if (group.momentum == 0 && (part != "msnag" || group.weight_decay == 0))
      return no_op(fmt::format("without momentum {} has nothing to predict from", part));
    return {};
  }
  if (part == "spike") {
    if (!plain_sgd) return refused(fmt::format("spike is for SGD in torch's form, not for {}", optimizer));
    if (group.momentum == 0) return refused("spike needs momentum");
    if (group.dampening != 0 || group.nesterov) return refused("spike takes neither dampening nor nesterov=True");
    return {};
  }
  const std::string expected = part == "nesterov" ? "nadam" : part;
  if (optimizer != expected)
    return refused(
        fmt::format("{} is for the optimizer {}; for {} use {}", part, expected, optimizer, auto_policy(rule)));
  return {};
}

// torch squares the real and the imaginary part each by itself, and so would a prediction have to.
Verdict complex_takes(const Optimizer& optimizer, const std::string& part) {
  if (!optimizer.weights.defined() || !optimizer.weights.is_complex() || part == "none" || part == "stash") return {};
  if (is_adaptive(optimizer.rule) || part == "gap_aware")
    return refused(
        fmt::format("{} takes roots and squares, which complex weights have another kind of; use stash", part));
  return {};
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Schedule& one : kSchedules) all.push_back(one.name);
    return all;
  }();
  return names;
}

Verdict schedule_takes(const std::string& schedule, const std::string& policy) {
  const std::vector<std::string> parts = parts_of(policy);
  const auto found = std::ranges::find(kSchedules, schedule, &Schedule::name);
  if (found == kSchedules.end())
    throw ConfigError(fmt::format("schedule {:?} is unknown, one of {} was expected{}", schedule,
                                  fmt::join(schedule_names(), ", "), did_you_mean(schedule, schedule_names())));
  const bool none = policy == "none";
  switch (found->delay) {
    case Delay::none: return synchronous(schedule, parts);
    case Delay::by_depth: return {};
    case Delay::one_everywhere:
      if (policy == "stash") return no_op("2bw keeps two versions by itself");
      return none ? Verdict{} : refused("2bw itself says which version forward and backward read");
    case Delay::accepted:
      return none ? Verdict{} : refused("paci is async_1f1b with accumulation and no policy; take async_1f1b instead");
  }
  return {};
}

Verdict optimizer_takes(const Optimizer& optimizer, const std::string& policy) {
  size_t idle = 0;
  Verdict note;
  const std::vector<std::string> parts = parts_of(policy);
  for (const std::string& part : parts) {
    if (const Verdict one = complex_takes(optimizer, part); one.fit == Fit::refused) return one;
    size_t idle_groups = 0;
    for (const Group& group : optimizer.groups) {
      const Verdict one = group_takes(optimizer.rule, group, part);
      if (one.fit == Fit::refused) return one;
      if (one.fit == Fit::no_op) note = one, ++idle_groups;
    }
    if (idle_groups > 0 && idle_groups == optimizer.groups.size()) ++idle;
  }
  // Only where no part does anything in any group.
  return idle == parts.size() ? note : Verdict{};
}

}  // namespace ddip::staleness
