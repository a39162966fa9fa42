// The learning rate over a run: up in a straight line for the first steps, then down along a cosine to nearly nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace ddip::models::unet {

// `step` counts from 0; `steps` of the whole run, as far as it is known.
inline double learning_rate(double highest, uint64_t step, uint64_t steps) {
  const double warm = std::max(1.0, 0.05 * static_cast<double>(steps)), at = static_cast<double>(step) + 1;
  if (at <= warm) return highest * at / warm;
  const double share = std::min(1.0, (at - warm) / std::max(1.0, static_cast<double>(steps) - warm));
  return highest * (0.01 + 0.99 * 0.5 * (1 + std::cos(std::numbers::pi * share)));
}

}  // namespace ddip::models::unet
