// Batches of events as tensors, in the memory they were read into.
#pragma once

#include <optional>
#include <vector>

#include "ddip/data/loader.h"
#include "ddip/tensors/torch.h"

namespace ddip::models {

struct EventTensors {
  std::vector<uint64_t> samples;
  at::Tensor images;  // float32 (samples, channels, height, width)
  at::Tensor labels;  // uint8 (samples, height, width)
};

// The loader's next batch; nothing at the end of the epoch.
std::optional<EventTensors> next_tensors(data::Loader& loader);

}  // namespace ddip::models
