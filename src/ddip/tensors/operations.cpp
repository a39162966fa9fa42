#include "ddip/tensors/operations.h"

#include <fmt/format.h>

#include "ddip/base/error.h"

namespace ddip::tensors {
namespace {

using Part = Operations::Part;

at::Tensor joined(const std::vector<at::Tensor>& list) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : list) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

void split_into(const at::Tensor& flat, const std::vector<at::Tensor>& list) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : list) {
    tensor.copy_(flat.narrow(0, begin, tensor.numel()).view_as(tensor));
    begin += tensor.numel();
  }
}

std::vector<Part> parts_of(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int world) {
  int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  if (sizes.empty() && rows % world != 0)
    throw ConfigError(fmt::format("all_to_all: {} rows cannot be divided among {} ranks", rows, world));
  if (!sizes.empty() && sizes.size() != static_cast<size_t>(world))
    throw ConfigError(fmt::format("all_to_all needs {} sizes, not {}", world, sizes.size()));
  size_t row = rows > 0 ? tensor.nbytes() / static_cast<size_t>(rows) : 0;
  std::vector<Part> parts;
  size_t begin = 0;
  for (size_t rank = 0; rank < static_cast<size_t>(world); ++rank) {
    size_t count = static_cast<size_t>(sizes.empty() ? rows / world : sizes[rank]);
    parts.push_back({begin, count * row});
    begin += count * row;
  }
  if (begin != tensor.nbytes()) throw ConfigError("all_to_all: the sizes do not add up to the tensor's");
  return parts;
}

std::vector<Part> parts_of(const std::vector<at::Tensor>& list, int world) {
  if (list.size() != static_cast<size_t>(world))
    throw ConfigError(fmt::format("all_to_all needs {} tensors, not {}", world, list.size()));
  std::vector<Part> parts;
  size_t begin = 0;
  for (const at::Tensor& tensor : list) {
    parts.push_back({begin, tensor.nbytes()});
    begin += tensor.nbytes();
  }
  return parts;
}

// A contiguous tensor on a GPU to work on in place of `tensor`, which gets the result at the end.
class OnGpu {
 public:
  explicit OnGpu(const at::Tensor& tensor) : tensor_(tensor), flat_(tensor.contiguous()) {}
  const at::Tensor& flat() const { return flat_; }
  void finish() {
    if (!flat_.is_same(tensor_)) tensor_.copy_(flat_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor flat_;
};

}  // namespace

const at::Tensor& require_usable(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() && !tensor.device().is_cuda())
    throw ConfigError(fmt::format("backend ddip works on CPU and CUDA tensors, not on {}", tensor.device().str()));
  if (tensor.is_sparse()) throw ConfigError("this operation does not exist for sparse tensors");
  return tensor;
}

void require_equal(const std::vector<at::Tensor>& list, int world, const at::Tensor& one, const char* what) {
  if (list.size() != static_cast<size_t>(world))
    throw ConfigError(fmt::format("{} needs {} tensors, one per rank, not {}", what, world, list.size()));
  for (const at::Tensor& tensor : list) {
    if (tensor.scalar_type() != one.scalar_type() || tensor.numel() != one.numel())
      throw ConfigError(fmt::format("{}: tensors of all ranks must have one size and type", what));
  }
}

Flat::Flat(const at::Tensor& tensor, bool write_back)
    : tensor_(tensor),
      flat_(require_usable(tensor).cpu().contiguous()),
      write_back_(write_back && !flat_.is_same(tensor)) {}

Flat Flat::output(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && tensor.is_cpu()) return Flat(tensor, true);
  return Flat(tensor, at::empty(require_usable(tensor).sizes(), tensor.options().device(at::kCPU)));
}

CudaCollectives* Operations::on(at::Device device) {
  if (device.is_cpu() || !shared_) return nullptr;
  for (const auto& one : cuda_) {
    if (one->device() == device) return one.get();
  }
  return cuda_.emplace_back(std::make_unique<CudaCollectives>(*shared_, device)).get();
}

void Operations::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& operation) {
  comm::Typed how = typed(tensor, operation);
  if (CudaCollectives* cuda = on(tensor.device())) {
    OnGpu work(tensor);
    cuda->all_reduce(work.flat(), how);
    return work.finish();
  }
  Flat flat(tensor, true);
  ranks_.all_reduce(flat.data(), elements_in(tensor), how);
  flat.finish();
}

// Every rank gets everybody's entries and adds them up in the order of the ranks.
void Operations::all_reduce_sparse(const at::Tensor& tensor) {
  at::Tensor mine = tensor.coalesce();
  int64_t count = mine._nnz();
  std::vector<int64_t> counts(static_cast<size_t>(ranks_.world()));
  ranks_.all_gather(&count, counts.data(), sizeof count);
  int64_t most = *std::max_element(counts.begin(), counts.end());
  auto padded = [&](const at::Tensor& part) {
    std::vector<int64_t> shape = part.sizes().vec();
    shape[0] = most;
    at::Tensor whole = at::zeros(shape, part.options());
    whole.narrow(0, 0, count).copy_(part);
    return whole;
  };
  at::Tensor indices = padded(mine.indices().t().contiguous()), values = padded(mine.values());
  auto gathered = [&](const at::Tensor& part) {
    std::vector<int64_t> shape = part.sizes().vec();
    shape.insert(shape.begin(), ranks_.world());
    at::Tensor all = at::empty(shape, part.options());
    all_gather(all, part);
    return all;
  };
  at::Tensor all_indices = gathered(indices), all_values = gathered(values);
  at::Tensor sum;
  for (int rank = 0; rank < ranks_.world(); ++rank) {
    int64_t here = counts[static_cast<size_t>(rank)];
    at::Tensor part = at::sparse_coo_tensor(all_indices[rank].narrow(0, 0, here).t(),
                                            all_values[rank].narrow(0, 0, here), tensor.sizes(), tensor.options());
    sum = sum.defined() ? sum + part : part;
  }
  tensor.copy_(sum);
}

void Operations::reduce(const at::Tensor& tensor, const c10d::ReduceOp& operation, int root) {
  Flat flat(tensor, rank() == root);
  ranks_.reduce(flat.data(), elements_in(tensor), typed(tensor, operation), root);
  flat.finish();
}

void Operations::broadcast(const at::Tensor& tensor, int root) {
  if (CudaCollectives* cuda = on(tensor.device())) {
    OnGpu work(tensor);
    cuda->broadcast(work.flat(), root);
    return work.finish();
  }
  Flat flat(tensor, rank() != root);
  ranks_.broadcast(flat.data(), flat.bytes(), root);
  flat.finish();
}

void Operations::all_gather(const at::Tensor& output, const at::Tensor& input) {
  if (output.numel() != input.numel() * world() || output.scalar_type() != input.scalar_type())
    throw ConfigError(
        fmt::format("all_gather: the output needs {} elements, it has {}", input.numel() * world(), output.numel()));
  if (CudaCollectives* cuda = on(input.device())) {
    OnGpu out(output), in(input);
    cuda->all_gather(out.flat(), in.flat());
    return out.finish();
  }
  Flat in(input, false), out = Flat::output(output);
  ranks_.all_gather(in.data(), out.data(), in.bytes());
  out.finish();
}

void Operations::all_gather(const Tensors& outputs, const at::Tensor& input) {
  require_equal(outputs, world(), input, "all_gather");
  at::Tensor all = at::empty({input.numel() * world()}, input.options());
  all_gather(all, input);
  split_into(all, outputs);
}

void Operations::gather(const Tensors& outputs, const at::Tensor& input, int root) {
  Flat in(input, false);
  at::Tensor all;
  if (rank() == root) all = at::empty({input.numel() * world()}, input.options().device(at::kCPU));
  ranks_.gather(in.data(), all.defined() ? all.data_ptr() : nullptr, in.bytes(), root);
  if (all.defined()) split_into(all, outputs);
}

void Operations::scatter(const at::Tensor& output, const Tensors& inputs, int root) {
  at::Tensor all;
  if (rank() == root) all = joined(inputs).cpu();
  Flat out = Flat::output(output);
  ranks_.scatter(all.defined() ? all.data_ptr() : nullptr, out.data(), out.bytes(), root);
  out.finish();
}

void Operations::reduce_scatter(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& operation) {
  if (input.numel() != output.numel() * world() || output.scalar_type() != input.scalar_type())
    throw ConfigError(
        fmt::format("reduce_scatter: the input needs {} elements, it has {}", output.numel() * world(), input.numel()));
  comm::Typed how = typed(output, operation);
  if (CudaCollectives* cuda = on(output.device())) {
    OnGpu out(output), in(input);
    cuda->reduce_scatter(out.flat(), in.flat(), how);
    return out.finish();
  }
  Flat in(input, false), out = Flat::output(output);
  ranks_.reduce_scatter(in.data(), out.data(), elements_in(output), how);
  out.finish();
}

void Operations::reduce_scatter(const at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& operation) {
  reduce_scatter(output, joined(inputs), operation);
}

void Operations::all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_sizes,
                            const std::vector<int64_t>& input_sizes) {
  auto to = parts_of(input, input_sizes, world()), from = parts_of(output, output_sizes, world());
  Flat in(input, false), out = Flat::output(output);
  ranks_.all_to_all(in.data(), to, out.data(), from);
  out.finish();
}

void Operations::all_to_all(const Tensors& outputs, const Tensors& inputs) {
  auto to = parts_of(inputs, world()), from = parts_of(outputs, world());
  at::Tensor out = joined(inputs).cpu();
  size_t bytes = from.back().begin + from.back().bytes;
  at::Tensor in = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  ranks_.all_to_all(out.data_ptr(), to, in.data_ptr(), from);
  for (size_t peer = 0; peer < outputs.size(); ++peer) {
    if (from[peer].bytes == 0) continue;
    at::Tensor part = in.narrow(0, static_cast<int64_t>(from[peer].begin), static_cast<int64_t>(from[peer].bytes));
    outputs[peer].copy_(part.clone().view(outputs[peer].scalar_type()).view_as(outputs[peer]));
  }
}

}  // namespace ddip::tensors
