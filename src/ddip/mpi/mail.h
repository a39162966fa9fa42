// Messages between two ranks over MPI, which keeps them in order.
#pragma once

#include <atomic>

#include "ddip/comm/collectives.h"
#include "ddip/mpi/process.h"

namespace ddip::mpi {

class Mail : public comm::Mail {
 public:
  Mail(Process& process, MPI_Comm ranks, std::chrono::milliseconds patience)
      : process_(process), ranks_(ranks), patience_(patience) {}

  void send(int to, int64_t tag, const void* data, size_t bytes, Done done) override;
  void receive(int from, int64_t tag, void* data, size_t bytes, Done done) override;
  void set_patience(std::chrono::milliseconds patience) override { patience_ = patience; }

 private:
  void require_peer(int peer) const;

  Process& process_;
  const MPI_Comm ranks_;
  std::atomic<std::chrono::milliseconds> patience_;
};

}  // namespace ddip::mpi
