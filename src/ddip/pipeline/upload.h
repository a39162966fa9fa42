// Samples and messages on their way from the host's memory to the device that computes with them.
#pragma once

#include "ddip/pipeline/value.h"

namespace ddip::pipeline {

// The caller may change what it gave as soon as this returns. On a GPU that is when the copy is there: what the GPU
// still has to compute is not waited for.
Value to_device(const Value& value, at::Device device);

}  // namespace ddip::pipeline
