#include "ddip/models/unet/held_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ddip/base/error.h"

namespace ddip::models::unet {

uint64_t events_held_out(uint64_t events, double share) {
  return std::max<uint64_t>(static_cast<uint64_t>(std::lround(static_cast<double>(events) * share)), 1);
}

void require_trainable(const Settings& settings, uint64_t events) {
  if (events != settings.events)
    throw ConfigError(fmt::format("{}: it has {} events; when the run began it had {}", settings.data.string(), events,
                                  settings.events));
  if (events_held_out(events, settings.hold_out) >= events)
    throw ConfigError(
        fmt::format("{}: {} events are too few to train on some and test on others", settings.data.string(), events));
}

}  // namespace ddip::models::unet
