// Which events are never trained on: the last ones.
#pragma once

#include <cstdint>

#include "ddip/models/unet/settings.h"

namespace ddip::models::unet {

uint64_t events_held_out(uint64_t events, double share);

// Throws ConfigError where so many events cannot be trained with these settings, or are not those of the run.
void require_trainable(const Settings& settings, uint64_t events);

}  // namespace ddip::models::unet
