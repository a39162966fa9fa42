// The door of the library libddip_mpi: comm/mpi_library.cpp opens it.
#include "ddip/mpi/collectives.h"

extern "C" __attribute__((visibility("default"))) ddip::comm::Collectives* ddip_mpi_open(int64_t patience_ms) {
  return new ddip::mpi::Collectives(ddip::mpi::Process::instance(), std::chrono::milliseconds(patience_ms));
}
