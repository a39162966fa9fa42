// The ranks of a program that mpirun started. MPI lies in a library of its own, libddip_mpi, which is loaded here: who
// does not ask for it does not load MPI.
#pragma once

#include <chrono>
#include <memory>

#include "ddip/comm/collectives.h"

namespace ddip::comm {

// All ranks call it, as often as each other. Throws ConfigError where MPI is not there; TimedOut.
std::unique_ptr<Collectives> open_mpi(std::chrono::milliseconds patience);

}  // namespace ddip::comm
