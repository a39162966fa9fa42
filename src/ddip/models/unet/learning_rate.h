// The learning rate over a run: up in a straight line at first, then down along a cosine to nearly nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ddip::models::unet {

// `share` of the run that is done with this step, above 0. Counted in samples, so that it does not matter how many
// ranks make them.
inline double learning_rate(double highest, double share) {
  constexpr double kWarm = 0.05, kLowest = 0.01;
  if (share <= kWarm) return highest * share / kWarm;
  const double behind = std::min(1.0, (share - kWarm) / (1 - kWarm));
  return highest * (kLowest + (1 - kLowest) * 0.5 * (1 + std::cos(std::numbers::pi * behind)));
}

}  // namespace ddip::models::unet
