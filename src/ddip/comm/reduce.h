// Reducing buffers of all ranks into one, always in the order of the ranks: the same bits wherever it is done.
#pragma once

#include <span>

#include "ddip/comm/element.h"

namespace ddip::comm {

// Whether this reduction means something for this type; bit operations need integers, a mean does not exist for them.
bool can_reduce(Element element, Reduction reduction);

// out[i] = inputs[0][i] ∘ inputs[1][i] ∘ …. 16-bit floats are summed in 32 bits and rounded once; a mean divides that
// sum at the end; a scaled sum multiplies it by `scale`. `out` may be one of the inputs. REQUIRES: can_reduce(element,
// reduction).
void reduce(Element element, Reduction reduction, double scale, std::span<const void* const> inputs, void* out,
            size_t count);

// 16-bit floats to 32 bits and back. REQUIRES: f16 or bf16.
void to_floats(Element element, const void* in, float* out, size_t count);
void from_floats(Element element, const float* in, void* out, size_t count);

}  // namespace ddip::comm
