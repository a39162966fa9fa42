// What torch calls types and reductions, in comm's words.
#pragma once

#include "ddip/comm/collectives.h"
#include "ddip/tensors/torch.h"

namespace ddip::tensors {

// Complex numbers are pairs of reals. Throws ConfigError for types that are not reduced.
comm::Element element_of(const at::Tensor& tensor);
size_t elements_in(const at::Tensor& tensor);

comm::Typed typed(const at::Tensor& tensor, const c10d::ReduceOp& operation);

}  // namespace ddip::tensors
