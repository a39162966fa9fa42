// Where a C++ program stands among its ranks: what torchrun, `ddip run` and mpirun's like put into the environment.
#pragma once

#include <memory>

#include "ddip/tensors/communicator.h"

namespace ddip {

using tensors::Communicator;

class Context {
 public:
  // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; without them one rank alone. Throws ConfigError when some are missing.
  static Context from_environment();

  int rank() const { return rank_; }
  int world_size() const { return world_; }
  // All ranks of this host, made by the first call, which waits for all of them.
  std::shared_ptr<Communicator> communicator();

 private:
  Context(int rank, int world, std::string address, int port);

  int rank_;
  int world_;
  std::string address_;
  int port_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace ddip
