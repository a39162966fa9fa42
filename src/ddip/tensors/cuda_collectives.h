// The collectives that training lives on, on GPU memory. Ranks may share a GPU, where a kernel that waits for another
// rank would burn its time slice: so the hosts wait for their streams, meet in shared memory, and go on.
#pragma once

#include <memory>
#include <vector>

#include "ddip/tensors/cuda_slab.h"

namespace ddip::tensors {

class CudaCollectives {
 public:
  CudaCollectives(comm::shm::Collectives& ranks, at::Device device) : ranks_(ranks), device_(device) {}

  // Contiguous tensors on our device. They are there, on every stream, when the call returns.
  void all_reduce(const at::Tensor& tensor, const comm::shm::Typed& typed);
  void broadcast(const at::Tensor& tensor, int root);
  void all_gather(const at::Tensor& all, const at::Tensor& mine);
  void reduce_scatter(const at::Tensor& mine, const at::Tensor& all, const comm::shm::Typed& typed);

  // Memory that all ranks see: all_reduce on it need not copy it first. All ranks, with the same size.
  std::shared_ptr<std::byte> allocate(size_t bytes);

  at::Device device() const { return device_; }

 private:
  struct Place {
    std::shared_ptr<CudaSlab> slab;
    uint64_t number = 0;
    size_t offset = 0;
  };
  struct Allocated {
    uint64_t number;
    std::weak_ptr<CudaSlab> slab;
  };

  Place find(const void* data, size_t bytes);
  // Where tensors of others are copied to, at least this large.
  CudaSlab& staging(size_t bytes);
  at::Tensor at_place(std::byte* memory, int64_t count, const at::Tensor& like) const;
  void reduce_slice(const CudaSlab& slab, size_t offset, const at::Tensor& like, int64_t count,
                    const comm::shm::Typed& typed, const at::Tensor& out, int64_t begin) const;
  void sync() const;

  comm::shm::Collectives& ranks_;
  const at::Device device_;
  std::unique_ptr<CudaSlab> staging_;
  uint64_t allocations_ = 0;
  std::vector<Allocated> allocated_;
};

}  // namespace ddip::tensors
