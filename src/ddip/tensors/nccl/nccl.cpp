#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "ddip/base/error.h"
#include "ddip/tensors/backends.h"

namespace ddip::tensors {

c10::intrusive_ptr<c10d::Backend> make_nccl(const Seat& seat) {
  // Asked before NCCL is: two ranks on one GPU are an error of its own deep inside, or wait for ever.
  int gpus = static_cast<int>(torch::cuda::device_count());
  if (gpus < seat.world)
    throw ConfigError(fmt::format(
        "backend nccl needs one GPU per rank, and {} ranks have {} here: shm lets ranks share one", seat.world, gpus));
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = seat.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(seat.store, seat.rank, seat.world, options);
}

}  // namespace ddip::tensors
