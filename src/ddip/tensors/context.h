// Where a C++ program stands among its ranks: what torchrun, `ddip run` and mpirun put into the environment.
#pragma once

#include <memory>

#include "ddip/tensors/communicator.h"

namespace ddip {

using tensors::Communicator;

class Context {
 public:
  // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; else Open MPI's OMPI_COMM_WORLD_RANK and _SIZE; without any of them one
  // rank alone. `backend`: shm, mpi, nccl; auto is mpi under mpirun, else shm. Throws ConfigError when some are
  // missing.
  static Context from_environment(const std::string& backend = "auto");

  int rank() const { return rank_; }
  int world_size() const { return world_; }
  // All ranks of this host (with mpi: of the job), made by the first call, which waits for all of them.
  std::shared_ptr<Communicator> communicator();

 private:
  Context() = default;

  int rank_ = 0;
  int world_ = 1;
  std::string backend_;
  std::string reason_;
  std::string address_;  // empty: no store is needed
  int port_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace ddip
