#include "ddip/pipeline/loss_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ddip/base/error.h"

namespace ddip::pipeline {

namespace {

void require_scale(double scale) {
  int exponent = 0;
  if (!(scale >= LossScale::kLeast && scale <= LossScale::kMost) || std::frexp(scale, &exponent) != 0.5)
    throw ConfigError(fmt::format("loss_scale={}: expected a power of two from 2^-24 to 2^24", scale));
}

}  // namespace

LossScale::LossScale(const Options& options) : options_(options), state_{.scale = options.initial} {
  require_scale(options.initial);
  if (options.interval < 0)
    throw ConfigError(
        fmt::format("loss_scale: interval {}: expected a whole number of steps, 0: it stays", options.interval));
}

void LossScale::require(const State& state) {
  require_scale(state.scale);
  for (double scale : state.under_way) require_scale(scale);
  if (state.finite < 0) throw ConfigError(fmt::format("loss_scale: {} finite steps", state.finite));
}

int64_t LossScale::restore(State state, int delay) {
  state_ = std::move(state);
  if (options_.interval == 0) state_.scale = options_.initial;
  auto& under_way = state_.under_way;
  const auto more = static_cast<int64_t>(under_way.size()) - delay;
  if (more > 0) under_way.erase(under_way.begin(), under_way.begin() + more);
  return static_cast<int64_t>(under_way.size());
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
