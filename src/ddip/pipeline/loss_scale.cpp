#include "ddip/pipeline/loss_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ddip/base/error.h"

namespace ddip::pipeline {

LossScale::LossScale(const Options& options) : options_(options), state_{.scale = options.initial} {
  int exponent = 0;
  if (!(options.initial >= kLeast && options.initial <= kMost) || std::frexp(options.initial, &exponent) != 0.5)
    throw ConfigError(fmt::format("loss_scale={:g}: expected a power of two from 2^-24 to 2^24", options.initial));
  if (options.interval < 0)
    throw ConfigError(
        fmt::format("loss_scale: interval {}: expected a whole number of steps, 0: it stays", options.interval));
}

void LossScale::stepped(std::optional<bool> finite) {
  auto& [scale, in_a_row, under_way] = state_;
  under_way.push_back(scale);
  if (!finite) return;
  const double used = under_way.front();
  under_way.erase(under_way.begin());
  if (options_.interval == 0) return;
  if (!*finite) {
    if (used > scale) return;  // it has been halved for a step before
    scale = std::max(kLeast, used / 2);
    in_a_row = 0;
  } else if (used == scale && ++in_a_row == options_.interval) {
    scale = std::min(kMost, scale * 2);
    in_a_row = 0;
  }
}

}  // namespace ddip::pipeline
