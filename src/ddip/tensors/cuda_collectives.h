// The collectives that training lives on, on GPU memory. Ranks may share a GPU, where a kernel that waits for another
// rank would burn its time slice: so the hosts wait for their streams, meet in shared memory, and go on.
//
// Every rank copies its data into memory that the others see, all meet, each takes what it needs. There are two such
// memories, used in turn: who comes to the next meeting has taken what was in this one, so one meeting is enough.
#pragma once

#include <memory>
#include <vector>

#include "ddip/tensors/cuda_slab.h"

namespace ddip::tensors {

class CudaCollectives {
 public:
  CudaCollectives(comm::shm::Collectives& ranks, at::Device device) : ranks_(ranks), device_(device) {}

  // Contiguous tensors on our device. They are there, on every stream, when the call returns.
  void all_reduce(const at::Tensor& tensor, const comm::Typed& typed);
  void broadcast(const at::Tensor& tensor, int root);
  void all_gather(const at::Tensor& all, const at::Tensor& mine);
  void reduce_scatter(const at::Tensor& mine, const at::Tensor& all, const comm::Typed& typed);

  at::Device device() const { return device_; }

 private:
  using Step = std::function<void(const CudaSlab& shared, int64_t begin, int64_t count)>;

  // For each piece of `count` elements of `size` bytes: put, meet, take.
  void in_pieces(const comm::shm::Operation& operation, int64_t count, size_t size, const Step& put, const Step& take);
  // What a rank has put in.
  at::Tensor of(const CudaSlab& shared, int rank, int64_t begin, int64_t count, const at::Tensor& like) const;
  void grow(size_t bytes);
  void sync() const;

  comm::shm::Collectives& ranks_;
  const at::Device device_;
  std::unique_ptr<CudaSlab> shared_[2];
  uint64_t turn_ = 0;
};

}  // namespace ddip::tensors
