// Collective operations on tensors, one after the other on whatever thread calls: contiguous or not, on the CPU or a
// GPU. Torch's words for types and reductions become comm's here; works and futures are the backend's business.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "ddip/tensors/cuda_collectives.h"
#include "ddip/tensors/elements.h"

namespace ddip::tensors {

class Operations {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Part = comm::Part;

  // `shared`: the same ranks where they share memory, which GPU tensors need to meet; null: those go through the CPU.
  explicit Operations(comm::Collectives& ranks, comm::shm::Collectives* shared = nullptr)
      : ranks_(ranks), shared_(shared) {}

  void barrier() { ranks_.barrier(); }
  void all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& operation);
  void all_reduce_sparse(const at::Tensor& tensor);
  void reduce(const at::Tensor& tensor, const c10d::ReduceOp& operation, int root);
  void broadcast(const at::Tensor& tensor, int root);
  void all_gather(const at::Tensor& output, const at::Tensor& input);
  void all_gather(const Tensors& outputs, const at::Tensor& input);
  void gather(const Tensors& outputs, const at::Tensor& input, int root);   // outputs on root only
  void scatter(const at::Tensor& output, const Tensors& inputs, int root);  // likewise
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& operation);
  void reduce_scatter(const at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& operation);
  // Sizes in rows, for each rank; none: equal parts.
  void all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_sizes,
                  const std::vector<int64_t>& input_sizes);
  void all_to_all(const Tensors& outputs, const Tensors& inputs);

  // Memory that all ranks see, on the CPU. All ranks, with the same size.
  std::shared_ptr<std::byte> allocate(size_t bytes) { return ranks_.allocate(bytes); }

  int rank() const { return ranks_.rank(); }
  int world() const { return ranks_.world(); }

 private:
  // Null: through the CPU.
  CudaCollectives* on(at::Device device);

  comm::Collectives& ranks_;
  comm::shm::Collectives* const shared_;
  std::vector<std::unique_ptr<CudaCollectives>> cuda_;
};

// Before anything waits: throws ConfigError for what no operation can take.
const at::Tensor& require_usable(const at::Tensor& tensor);
void require_equal(const std::vector<at::Tensor>& list, int world, const at::Tensor& one, const char* what);

// The tensor's memory in one piece, on the CPU: its own if it is, else a copy that is written back at the end.
class Flat {
 public:
  Flat(const at::Tensor& tensor, bool write_back);
  // Whose old content does not matter.
  static Flat output(const at::Tensor& tensor);
  void* data() const { return flat_.data_ptr(); }
  size_t bytes() const { return flat_.nbytes(); }
  void finish() {
    if (write_back_) tensor_.copy_(flat_);
  }

 private:
  Flat(const at::Tensor& tensor, at::Tensor flat) : tensor_(tensor), flat_(std::move(flat)), write_back_(true) {}

  at::Tensor tensor_;
  at::Tensor flat_;
  bool write_back_;
};

}  // namespace ddip::tensors
