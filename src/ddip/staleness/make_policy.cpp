#include "ddip/staleness/make_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"

namespace ddip::staleness {
namespace {

struct Known {
  std::string name;
  std::function<std::unique_ptr<Policy>(const Options&)> make;
};

const std::vector<Known>& known() {
  auto adaptive = [](const Options& options) { return make_adaptive(options.second_decays); };
  static const std::vector<Known> all = {
      {"none", [](const Options&) { return make_none(); }},
      {"stash", [](const Options&) { return make_stash(); }},
      {"msnag", [](const Options&) { return make_msnag(); }},
      {"aggmsnag", [](const Options&) { return make_aggmsnag(); }},
      {"spectrain", [](const Options&) { return make_spectrain(); }},
      {"lwp", [](const Options&) { return make_lwp(); }},
      {"adam", adaptive},
      {"adamw", adaptive},
      {"nadam", adaptive},
      {"nesterov", [](const Options&) { return make_stash(); }},
      {"pipemare", [](const Options& options) { return make_pipemare(options.pipemare); }},
      {"spike", [](const Options&) { return make_spike(); }},
      {"gap_aware", [](const Options& options) { return make_gap_aware(options.gap); }},
  };
  return all;
}

const std::vector<std::string> kPredictForward = {"msnag", "aggmsnag", "spectrain", "lwp", "adam", "adamw", "nadam"};
const std::vector<std::string> kKeepForward = {"stash", "nesterov", "gap_aware"};

bool is_in(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

void refuse_contradictions(const std::string& policy, const std::vector<std::string>& parts) {
  std::vector<std::string> predict, keep;
  for (const std::string& part : parts) {
    if (std::ranges::count(parts, part) > 1) throw ConfigError(fmt::format("policy {:?} has {} twice", policy, part));
    if (is_in(kPredictForward, part)) predict.push_back(part);
    if (is_in(kKeepForward, part)) keep.push_back(part);
  }
  const bool pipemare = is_in(parts, "pipemare");
  if (parts.size() > 1 && is_in(parts, "none"))
    throw ConfigError(fmt::format("policy {:?}: none goes with no other", policy));
  if (predict.size() > 1)
    throw ConfigError(fmt::format("policy {:?}: {} both predict the forward's weights, one of them was expected",
                                  policy, fmt::join(predict, " and ")));
  if (pipemare && !keep.empty())
    throw ConfigError(
        fmt::format("policy {:?}: pipemare corrects the backward's weights, {} replaces them", policy, keep.front()));
  if (pipemare && is_in(parts, "spike"))
    throw ConfigError(fmt::format("policy {:?}: pipemare and spike both change the step", policy));
  if (pipemare && is_in(parts, "spectrain"))
    throw ConfigError(fmt::format("policy {:?}: pipemare and spectrain both give the backward its weights", policy));
}

}  // namespace

const std::vector<std::string>& policy_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Known& one : known()) all.push_back(one.name);
    return all;
  }();
  return names;
}

std::vector<std::string> parts_of(const std::string& policy) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= policy.size();) {
    const size_t end = std::min(policy.find('+', begin), policy.size());
    const std::string part = policy.substr(begin, end - begin);
    if (!is_in(policy_names(), part))
      throw ConfigError(fmt::format("policy {:?}: {:?} is unknown, one of {} was expected{}", policy, part,
                                    fmt::join(policy_names(), ", "), did_you_mean(part, policy_names())));
    parts.push_back(part);
    begin = end + 1;
  }
  refuse_contradictions(policy, parts);
  return parts;
}

std::unique_ptr<Policy> make_policy(const std::string& name, const Options& options) {
  std::vector<std::unique_ptr<Policy>> parts;
  for (const std::string& part : parts_of(name))
    parts.push_back(std::ranges::find(known(), part, &Known::name)->make(options));
  return parts.size() == 1 ? std::move(parts.front()) : make_combined(std::move(parts));
}

std::string auto_policy(Rule rule) {
  switch (rule) {
    case Rule::sgd:
    case Rule::sutskever: return "msnag";
    case Rule::adam: return "adam";
    case Rule::adamw: return "adamw";
    case Rule::nadam: return "nadam";
    case Rule::other: return "stash";
  }
  return "stash";
}

double nesterov_beta1(double beta, int versions, int stages) {
  if (versions > stages) return 0.99;  // a window wider than the textbook's keeps more
  return beta + (versions - 1) * (0.99 - beta) / stages;
}

}  // namespace ddip::staleness
