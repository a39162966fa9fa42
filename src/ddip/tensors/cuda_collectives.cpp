#include "ddip/tensors/cuda_collectives.h"

#include "ddip/base/error.h"

namespace ddip::tensors {
namespace {

using comm::Reduction;
using comm::Typed;
using comm::shm::Kind;
using comm::shm::Operation;

// Tensors that are larger go in pieces: a piece costs a meeting, its bytes next to nothing.
constexpr size_t kPieceBytes = size_t{256} << 20;
constexpr size_t kLeastBytes = size_t{4} << 20;

at::Tensor combined(const at::Tensor& first, const at::Tensor& second, Reduction reduction) {
  switch (reduction) {
    case Reduction::min: return at::minimum(first, second);
    case Reduction::max: return at::maximum(first, second);
    case Reduction::product: return first.mul(second);
    case Reduction::bit_and: return first.bitwise_and(second);
    case Reduction::bit_or: return first.bitwise_or(second);
    case Reduction::bit_xor: return first.bitwise_xor(second);
    default: return first.add(second);
  }
}

// In the order of the ranks, the same on each; 16-bit floats in 32 bits, rounded once. `out` is none of the inputs.
void reduce_into(at::Tensor out, const std::vector<at::Tensor>& inputs, const Typed& typed) {
  bool sums = typed.reduction == Reduction::sum || typed.reduction == Reduction::mean ||
              typed.reduction == Reduction::scaled_sum;
  bool narrow = out.scalar_type() == at::kHalf || out.scalar_type() == at::kBFloat16;
  at::Tensor result = narrow ? inputs[0].to(at::kFloat) : inputs[0];
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    if (!sums)
      result = combined(result, inputs[rank], typed.reduction);
    else if (narrow || rank > 1)
      result.add_(inputs[rank]);
    else
      result = at::add_out(out, inputs[0], inputs[1]);
  }
  if (!result.is_same(out)) {
    if (sums && narrow && typed.reduction == Reduction::mean) result.div_(static_cast<int64_t>(inputs.size()));
    if (sums && narrow && typed.reduction == Reduction::scaled_sum) result.mul_(typed.scale);
    out.copy_(result, /*non_blocking=*/true);
    if (narrow) return;
  }
  if (typed.reduction == Reduction::mean) out.div_(static_cast<int64_t>(inputs.size()));
  if (typed.reduction == Reduction::scaled_sum) out.mul_(typed.scale);
}

}  // namespace

void CudaCollectives::sync() const {
  c10::impl::VirtualGuardImpl guard(device_.type());
  guard.synchronizeStream(guard.getStream(device_));
}

at::Tensor CudaCollectives::of(const CudaSlab& shared, int rank, int64_t begin, int64_t count,
                               const at::Tensor& like) const {
  std::byte* place = shared.part(rank) + begin * like.element_size();
  return at::for_blob(place, {count}).options(like.options()).target_device(device_).make_tensor();
}

void CudaCollectives::grow(size_t bytes) {
  if (shared_[0] && shared_[0]->bytes() >= bytes) return;
  ranks_.barrier();  // nobody reads the old ones any more
  for (auto& shared : shared_) {
    shared.reset();
    shared = std::make_unique<CudaSlab>(ranks_, device_, std::max(kLeastBytes, bytes));
  }
}

void CudaCollectives::in_pieces(const Operation& operation, int64_t count, size_t size, const Step& put,
                                const Step& take) {
  c10::DeviceGuard guard(device_);
  const int64_t piece = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / size));
  grow(static_cast<size_t>(std::min(piece, count)) * size);
  for (int64_t begin = 0; begin == 0 || begin < count; begin += piece) {
    const int64_t length = std::min(piece, count - begin);
    const CudaSlab& shared = *shared_[turn_++ % 2];
    put(shared, begin, length);
    sync();
    ranks_.meet(operation);
    take(shared, begin, length);
    sync();
  }
}

void CudaCollectives::all_reduce(const at::Tensor& tensor, const Typed& typed) {
  at::Tensor flat = tensor.view({-1});
  in_pieces(
      {.count = static_cast<uint64_t>(flat.numel()),
       .kind = Kind::all_reduce,
       .element = typed.element,
       .reduction = typed.reduction},
      flat.numel(), static_cast<size_t>(flat.element_size()),
      [&](const CudaSlab& shared, int64_t begin, int64_t count) {
        of(shared, ranks_.rank(), 0, count, flat).copy_(flat.narrow(0, begin, count), true);
      },
      [&](const CudaSlab& shared, int64_t begin, int64_t count) {
        std::vector<at::Tensor> all;
        for (int rank = 0; rank < ranks_.world(); ++rank) all.push_back(of(shared, rank, 0, count, flat));
        reduce_into(flat.narrow(0, begin, count), all, typed);
      });
}

void CudaCollectives::broadcast(const at::Tensor& tensor, int root) {
  at::Tensor flat = tensor.view({-1});
  in_pieces(
      {.count = flat.nbytes(), .kind = Kind::broadcast, .root = root}, flat.numel(),
      static_cast<size_t>(flat.element_size()),
      [&](const CudaSlab& shared, int64_t begin, int64_t count) {
        if (ranks_.rank() == root) of(shared, root, 0, count, flat).copy_(flat.narrow(0, begin, count), true);
      },
      [&](const CudaSlab& shared, int64_t begin, int64_t count) {
        if (ranks_.rank() != root) flat.narrow(0, begin, count).copy_(of(shared, root, 0, count, flat), true);
      });
}

void CudaCollectives::all_gather(const at::Tensor& all, const at::Tensor& mine) {
  at::Tensor out = all.view({ranks_.world(), -1}), in = mine.view({-1});
  in_pieces(
      {.count = in.nbytes(), .kind = Kind::all_gather}, in.numel(), static_cast<size_t>(in.element_size()),
      [&](const CudaSlab& shared, int64_t begin, int64_t count) {
        of(shared, ranks_.rank(), 0, count, in).copy_(in.narrow(0, begin, count), true);
      },
      [&](const CudaSlab& shared, int64_t begin, int64_t count) {
        for (int rank = 0; rank < ranks_.world(); ++rank)
          out[rank].narrow(0, begin, count).copy_(of(shared, rank, 0, count, in), true);
      });
}

void CudaCollectives::reduce_scatter(const at::Tensor& mine, const at::Tensor& all, const Typed& typed) {
  const int64_t world = ranks_.world();
  at::Tensor out = mine.view({-1}), in = all.view({world, -1});
  in_pieces(
      {.count = static_cast<uint64_t>(out.numel()),
       .kind = Kind::reduce_scatter,
       .element = typed.element,
       .reduction = typed.reduction},
      out.numel(), static_cast<size_t>(world * out.element_size()),
      [&](const CudaSlab& shared, int64_t begin, int64_t count) {
        of(shared, ranks_.rank(), 0, world * count, out).view({world, count}).copy_(in.narrow(1, begin, count), true);
      },
      [&](const CudaSlab& shared, int64_t begin, int64_t count) {
        std::vector<at::Tensor> parts;
        for (int rank = 0; rank < world; ++rank) parts.push_back(of(shared, rank, count * ranks_.rank(), count, out));
        reduce_into(out.narrow(0, begin, count), parts, typed);
      });
}

}  // namespace ddip::tensors
