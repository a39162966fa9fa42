// comm's collectives over MPI. Each has communicators of its own, so that its calls meet nobody else's.
#pragma once

#include <atomic>

#include "ddip/comm/collectives.h"
#include "ddip/mpi/process.h"

namespace ddip::mpi {

using comm::Part;
using comm::Typed;

class Collectives : public comm::Collectives {
 public:
  // All ranks make it together.
  Collectives(Process& process, std::chrono::milliseconds patience);

  void barrier() override;
  void all_reduce(void* data, size_t count, const Typed& typed) override;
  void reduce(void* data, size_t count, const Typed& typed, int root) override;
  void broadcast(void* data, size_t bytes, int root) override;
  void all_gather(const void* mine, void* all, size_t bytes) override;
  void gather(const void* mine, void* all, size_t bytes, int root) override;
  void scatter(const void* all, void* mine, size_t bytes, int root) override;
  void reduce_scatter(const void* all, void* mine, size_t count, const Typed& typed) override;
  void all_to_all(const void* out, std::span<const Part> to, void* in, std::span<const Part> from) override;

  std::shared_ptr<std::byte> allocate(size_t bytes) override;
  std::unique_ptr<comm::Mail> open_mail() override;

  int rank() const override { return process_.rank(); }
  int world() const override { return process_.world(); }
  comm::Capabilities capabilities() const override { return {.identical_bits = true, .wide_sums = true}; }
  void set_patience(std::chrono::milliseconds patience) override { patience_ = patience; }
  std::string describe() const override;
  bool is_waiting() const override { return waiting_; }
  std::vector<double> waited() const override { return {}; }

 private:
  // `begin` returns MPI's code.
  void run(const char* name, const std::function<int(MPI_Request*)>& begin);

  Process& process_;
  std::chrono::milliseconds patience_;
  MPI_Comm ranks_ = MPI_COMM_NULL;
  MPI_Comm mail_ = MPI_COMM_NULL;
  uint64_t number_ = 0;  // of the calling thread
  std::atomic<bool> waiting_ = false;
  mutable std::mutex mutex_;  // guards the next
  std::string now_ = "nothing yet";
};

}  // namespace ddip::mpi
