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

}  // namespace ddip::comm
