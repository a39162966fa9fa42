#include "ddip/base/error.h"
#include "ddip/tensors/backends.h"

namespace ddip::tensors {

c10::intrusive_ptr<c10d::Backend> make_nccl(const Seat&) {
  throw ConfigError("backend nccl: ddip was built with a torch that has no NCCL, or without NCCL's and CUDA's headers");
}

}  // namespace ddip::tensors
