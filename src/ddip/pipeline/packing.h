// How tensors lie one behind the other in one piece of memory.
#pragma once

#include "ddip/pipeline/value.h"

namespace ddip::pipeline {

// Vector instructions like such beginnings, and so does a tensor of any type.
constexpr size_t kAlignment = 64;
constexpr size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The tensor's bytes, where it begins at `offset` of `end` bytes. Throws ProtocolError if it does not lie within.
size_t bytes_within(const Layout& layout, size_t offset, size_t end);

}  // namespace ddip::pipeline
