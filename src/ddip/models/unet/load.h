// A trained network from a run's folder.
#pragma once

#include "ddip/models/unet/network.h"
#include "ddip/models/unet/run_folder.h"

namespace ddip::models::unet {

struct Loaded {
  std::shared_ptr<Network> network;  // on the CPU
  uint64_t step = 0;
};

// The best checkpoint. Throws ConfigError.
Loaded load_best(RunFolder& folder);

}  // namespace ddip::models::unet
