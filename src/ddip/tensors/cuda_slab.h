// Memory on the GPU that all ranks of this host see: each allocates its own part and opens the others'. Ranks may share
// a GPU or have one each.
#pragma once

#include <vector>

#include "ddip/comm/shm/collectives.h"
#include "ddip/tensors/torch.h"

namespace ddip::tensors {

class CudaSlab {
 public:
  // All ranks, with the same size. Everybody gets it or nobody.
  CudaSlab(comm::shm::Collectives& ranks, at::Device device, size_t bytes);
  CudaSlab(const CudaSlab&) = delete;
  CudaSlab& operator=(const CudaSlab&) = delete;
  ~CudaSlab();

  std::byte* part(int rank) const { return memory_[static_cast<size_t>(rank)]; }
  size_t bytes() const { return bytes_; }

 private:
  void release() noexcept;

  const int rank_;
  const at::Device device_;
  const size_t bytes_;
  std::vector<std::byte*> memory_;  // by rank
};

}  // namespace ddip::tensors
