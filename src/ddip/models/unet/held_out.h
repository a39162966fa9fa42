// Which events are never trained on: the last ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace ddip::models::unet {

inline uint64_t events_held_out(uint64_t events, double share) {
  return std::max<uint64_t>(static_cast<uint64_t>(std::lround(static_cast<double>(events) * share)), 1);
}

}  // namespace ddip::models::unet
