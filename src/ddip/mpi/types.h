// Our types and reductions as MPI's. The reductions are ours, so that a NaN, an overflow or a truth value becomes what
// it becomes in shared memory.
#pragma once

#include <mpi.h>

#include <vector>

#include "ddip/comm/collectives.h"

namespace ddip::mpi {

// REQUIRES: not a 16-bit float; those travel as 32 bits.
MPI_Datatype type_of(comm::Element element);
// Without what happens at the end: a mean is a sum.
MPI_Op operation_of(comm::Reduction reduction);

// What MPI reduces: the data itself, or a copy in 32 bits of 16-bit floats, rounded once at the end.
class Reducible {
 public:
  Reducible(const void* in, size_t count, const comm::Typed& typed);

  // What to give to MPI in place of `data`.
  void* of(void* data) { return is_wide_ ? wide_.data() : data; }
  MPI_Datatype type() const;
  // Divides or multiplies a sum as the reduction wants it, and puts it into `out`, where it is unless it was copied.
  void finish(void* out, size_t count, int world);

 private:
  const comm::Typed typed_;
  const bool is_wide_;
  std::vector<float> wide_;
};

}  // namespace ddip::mpi
