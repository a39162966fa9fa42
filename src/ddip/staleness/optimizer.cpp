#include "ddip/staleness/optimizer.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace ddip::staleness {
namespace {

const std::array<std::pair<Rule, const char*>, 6> kNames = {{{Rule::sgd, "sgd"},
                                                             {Rule::sutskever, "sutskever"},
                                                             {Rule::adam, "adam"},
                                                             {Rule::adamw, "adamw"},
                                                             {Rule::nadam, "nadam"},
                                                             {Rule::other, "other"}}};

}  // namespace

Rule rule_of(const std::string& name) {
  std::string small = name;
  std::ranges::transform(small, small.begin(), [](unsigned char letter) { return std::tolower(letter); });
  for (const auto& [rule, known] : kNames)
    if (small == known) return rule;
  return Rule::other;
}

std::string name_of(Rule rule) { return std::ranges::find(kNames, rule, &std::pair<Rule, const char*>::first)->second; }

at::Tensor slice_of(const at::Tensor& flat, const Group& group) {
  if (!flat.defined() || (group.begin == 0 && group.end == flat.numel())) return flat;
  return flat.narrow(0, group.begin, group.end - group.begin);
}

}  // namespace ddip::staleness
