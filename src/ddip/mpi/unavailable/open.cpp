// What libddip_mpi is where it was built without MPI.
#include "ddip/base/error.h"
#include "ddip/comm/collectives.h"

extern "C" __attribute__((visibility("default"))) ddip::comm::Collectives* ddip_mpi_open(int64_t) {
  throw ddip::ConfigError(
      "backend mpi: ddip was built without Open MPI: install its headers (libopenmpi-dev) and build again");
}
