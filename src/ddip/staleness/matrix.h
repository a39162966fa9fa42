// What goes with what, decided before anything runs: policies with schedules, policies with optimizers.
#pragma once

#include <string>

#include "ddip/staleness/optimizer.h"

namespace ddip::staleness {

enum class Fit { valid, no_op, refused };

struct Verdict {
  Fit fit = Fit::valid;
  std::string why;  // one sentence; empty if valid
};

// Policy names as make_policy takes them; unknown names throw ConfigError with the nearest one.
Verdict schedule_takes(const std::string& schedule, const std::string& policy);
// Looks at the rule and the groups' settings, not at the tensors.
Verdict optimizer_takes(const Optimizer& optimizer, const std::string& policy);

const std::vector<std::string>& schedule_names();

}  // namespace ddip::staleness
