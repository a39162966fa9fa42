// Backends by name, for programs in C++ (Python makes its own in communicators.py).
#pragma once

#include <string>

#include "ddip/tensors/communicator.h"

namespace ddip::tensors {

// One rank, and where it meets the others.
struct Seat {
  c10::intrusive_ptr<c10d::Store> store;  // not used by mpi
  int rank = 0;
  int world = 1;
  std::chrono::milliseconds timeout{};
};

// shm, mpi or nccl. ConfigError for another name, and where this build or machine has not got it.
c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name, const Seat& seat);

// torch's NCCL, rank r on GPU r of this host. Where torch was built without, or without its headers, this is the
// unavailable twin, which throws ConfigError.
c10::intrusive_ptr<c10d::Backend> make_nccl(const Seat& seat);

}  // namespace ddip::tensors
