#include "ddip/tensors/backends.h"

#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/comm/mpi_library.h"
#include "ddip/tensors/c10d_backend.h"

namespace ddip::tensors {

c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name, const Seat& seat) {
  if (name == "shm") return c10::make_intrusive<C10dBackend>(seat.store, seat.rank, seat.world, seat.timeout);
  if (name == "mpi") return c10::make_intrusive<C10dBackend>(comm::open_mpi(seat.timeout), "mpi", seat.timeout);
  if (name == "nccl") return make_nccl(seat);
  throw ConfigError(fmt::format("backend '{}' is unknown, one of auto, shm, mpi, nccl was expected", name));
}

}  // namespace ddip::tensors
