// SHA-256 of tensors' bytes, one after the other, as Python's `hash_of`: equal bits, equal text.
#pragma once

#include <string>
#include <vector>

#include "ddip/tensors/torch.h"

namespace ddip::pipeline {

std::string hash_of(const std::vector<at::Tensor>& tensors);

}  // namespace ddip::pipeline
