// What our backends (shared memory, MPI) are to torch: torch.distributed's backend `ddip` under torch DDP, FSDP,
// DTensor and whatever else speaks c10d, and the lower half of a Communicator.
#pragma once

#include <memory>

#include "ddip/base/describer.h"
#include "ddip/comm/shm/watch.h"
#include "ddip/tensors/operations.h"
#include "ddip/tensors/worker_thread.h"

namespace ddip::tensors {

class C10dBackend : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    Options(std::string name, std::chrono::milliseconds timeout) : c10d::Backend::Options(std::move(name), timeout) {}
  };

  // Shared memory. Waits until all ranks are there.
  C10dBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout);
  // Any other.
  C10dBackend(std::unique_ptr<comm::Collectives> ranks, const std::string& name, std::chrono::milliseconds timeout);
  ~C10dBackend() override;

  const std::string getBackendName() const override { return options_->backend; }
  // Not marked `override`, here and below: torch 2.6 does not have them in its base.
  // NOLINTBEGIN(modernize-use-override)
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() { return options_; }
  void setTimeout(std::chrono::milliseconds timeout);
  bool supportsCoalescing() const { return true; }
  // NOLINTEND(modernize-use-override)
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<std::vector<at::Tensor>>;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override;
  Work gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  // NOLINTBEGIN(modernize-use-override)
  // Every wait ends, on all ranks; the group is dead. ConfigError where capabilities() say that this cannot be.
  void abort();
  void shutdown();
  // NOLINTEND(modernize-use-override)

  comm::Capabilities capabilities() const { return collectives_->capabilities(); }
  // Shutting it down is abort(), for who has no Python. REQUIRES: shared memory.
  int abort_socket() const { return shared_->watch->abort_socket(); }

  // Memory that all ranks see, on the CPU. All ranks call it, with the same size. REQUIRES: shared memory.
  std::shared_ptr<std::byte> allocate(size_t bytes);
  // Seconds this rank has waited for each of the others so far.
  std::vector<double> waited() const { return collectives_->waited(); }
  // Who waits for a message may move messages itself meanwhile, for a moment: see comm::Mail.
  void help(const std::function<bool()>& enough) { mail().help(enough); }
  // What this rank waits for now, in words.
  std::string describe() const { return collectives_->describe(); }
  // The same for the worker's control thread, as long as this backend lives.
  Describer describer() const;

 private:
  class OurWork;
  struct Window;  // through which others look at us

  // Runs `body` in its turn; `result` is what the work's future holds. `device`: of the tensors, if not the result's.
  Work start(c10d::OpType type, bool async, Tensors result, std::function<void(Operations&)> body,
             std::optional<at::Device> device = std::nullopt);
  Work receive(c10d::OpType type, Tensors& tensors, int from, int tag);
  comm::Mail& mail();

  c10::intrusive_ptr<Options> options_;
  struct Shared {
    comm::shm::Segment segment;
    std::unique_ptr<comm::shm::Watch> watch;
  };
  std::unique_ptr<Shared> shared_;  // null: not shared memory
  std::unique_ptr<comm::Collectives> collectives_;
  std::unique_ptr<Operations> operations_;
  std::mutex mail_mutex_;
  std::unique_ptr<comm::Mail> mail_;
  Window* const window_;  // stays when we go
  std::atomic<uint64_t> sequence_ = 0;
  std::vector<Work> coalesced_;
  bool coalescing_ = false;
  std::unique_ptr<WorkerThread> thread_;  // goes first: its tasks use the rest
};

}  // namespace ddip::tensors
