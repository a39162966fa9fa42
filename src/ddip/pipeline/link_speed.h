// How fast values get from rank to rank.
#pragma once

#include "ddip/tensors/communicator.h"

namespace ddip::pipeline {

// Bytes in a millisecond from a rank to the next one, on all ranks at once; the slowest link counts. All ranks. 0: one
// rank alone has no link. Only our own backend takes a GPU's tensors, through the host: its lanes between GPUs are
// faster.
double link_bytes_per_ms(tensors::Communicator& ranks, at::Device device);

}  // namespace ddip::pipeline
