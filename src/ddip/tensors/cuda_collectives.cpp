#include "ddip/tensors/cuda_collectives.h"

#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/comm/reduce.h"

namespace ddip::tensors {
namespace {

using comm::Reduction;
using comm::shm::Kind;
using comm::shm::Typed;

// Tensors that are larger go in pieces: a piece costs two meetings, its bytes next to nothing.
constexpr size_t kPieceBytes = size_t{256} << 20;
constexpr size_t kLeastStaging = size_t{4} << 20;

struct Slice {
  int64_t begin, count;
};
Slice slice_of(int rank, int world, int64_t count) {
  int64_t begin = count * rank / world;
  return {begin, count * (rank + 1) / world - begin};
}

// In the order of the ranks; 16-bit floats in 32 bits, rounded once.
void reduce_into(const at::Tensor& out, const std::vector<at::Tensor>& inputs, const Typed& typed) {
  bool narrow = out.scalar_type() == at::kHalf || out.scalar_type() == at::kBFloat16;
  at::Tensor sum = narrow ? inputs[0].to(at::kFloat) : inputs.size() == 1 ? inputs[0].clone() : at::Tensor();
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    at::Tensor first = sum.defined() ? sum : inputs[0];
    const at::Tensor& second = inputs[rank];
    switch (typed.reduction) {
      case Reduction::sum:
      case Reduction::mean:
      case Reduction::scaled_sum: sum = sum.defined() ? sum.add_(second) : first.add(second); break;
      case Reduction::min: sum = at::minimum(first, second); break;
      case Reduction::max: sum = at::maximum(first, second); break;
      case Reduction::product: sum = first.mul(second); break;
      case Reduction::bit_and: sum = first.bitwise_and(second); break;
      case Reduction::bit_or: sum = first.bitwise_or(second); break;
      case Reduction::bit_xor: sum = first.bitwise_xor(second); break;
    }
  }
  if (typed.reduction == Reduction::mean) sum.div_(static_cast<int64_t>(inputs.size()));
  if (typed.reduction == Reduction::scaled_sum) sum.mul_(typed.scale);
  out.copy_(sum, /*non_blocking=*/true);
}

}  // namespace

void CudaCollectives::sync() const {
  c10::impl::VirtualGuardImpl guard(device_.type());
  guard.synchronizeStream(guard.getStream(device_));
}

at::Tensor CudaCollectives::at_place(std::byte* memory, int64_t count, const at::Tensor& like) const {
  return at::for_blob(memory, {count}).options(like.options()).target_device(device_).make_tensor();
}

CudaSlab& CudaCollectives::staging(size_t bytes) {
  if (!staging_ || staging_->bytes() < bytes) {
    size_t size = std::max(kLeastStaging, bytes);
    ranks_.barrier();  // nobody reads the old one any more
    staging_.reset();
    staging_ = std::make_unique<CudaSlab>(ranks_, device_, size);
  }
  return *staging_;
}

std::shared_ptr<std::byte> CudaCollectives::allocate(size_t bytes) {
  auto slab = std::make_shared<CudaSlab>(ranks_, device_, bytes);
  std::erase_if(allocated_, [](const Allocated& one) { return one.slab.expired(); });
  allocated_.push_back({++allocations_, slab});
  return {slab, slab->part(ranks_.rank())};
}

CudaCollectives::Place CudaCollectives::find(const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  for (const Allocated& one : allocated_) {
    std::shared_ptr<CudaSlab> slab = one.slab.lock();
    if (!slab) continue;
    const std::byte* part = slab->part(ranks_.rank());
    if (begin >= part && begin + bytes <= part + slab->bytes())
      return {slab, one.number, static_cast<size_t>(begin - part)};
  }
  return {};
}

void CudaCollectives::reduce_slice(const CudaSlab& slab, size_t offset, const at::Tensor& like, int64_t count,
                                   const Typed& typed, const at::Tensor& out, int64_t begin) const {
  if (count == 0) return;
  std::vector<at::Tensor> inputs;
  size_t skipped = offset + static_cast<size_t>(begin) * static_cast<size_t>(like.element_size());
  for (int rank = 0; rank < ranks_.world(); ++rank) inputs.push_back(at_place(slab.part(rank) + skipped, count, like));
  reduce_into(out, inputs, typed);
}

void CudaCollectives::all_reduce(const at::Tensor& tensor, const Typed& typed) {
  c10::DeviceGuard guard(device_);
  at::Tensor flat = tensor.view({-1});
  const int64_t unit = flat.element_size();
  Place place = find(flat.data_ptr(), flat.nbytes());
  const int64_t piece = place.slab ? std::max<int64_t>(flat.numel(), 1) : static_cast<int64_t>(kPieceBytes) / unit;
  for (int64_t done = 0; done == 0 || done < flat.numel(); done += piece) {
    const int64_t count = std::min(piece, flat.numel() - done);
    at::Tensor part = flat.narrow(0, done, count);
    CudaSlab& slab = place.slab ? *place.slab : staging(static_cast<size_t>(count * unit));
    if (!place.slab) at_place(slab.part(ranks_.rank()), count, flat).copy_(part, true);
    sync();
    ranks_.meet({.count = static_cast<uint64_t>(flat.numel()),
                 .kind = Kind::all_reduce,
                 .element = typed.element,
                 .reduction = typed.reduction,
                 .symmetric = place.slab != nullptr,
                 .place = place.number << 48 | place.offset});
    Slice mine = slice_of(ranks_.rank(), ranks_.world(), count);
    reduce_slice(slab, place.offset, flat, mine.count, typed, at_place(slab.slot(ranks_.rank()), mine.count, flat),
                 mine.begin);
    sync();
    ranks_.meet_again();
    for (int rank = 0; rank < ranks_.world(); ++rank) {
      Slice theirs = slice_of(rank, ranks_.world(), count);
      if (theirs.count > 0)
        part.narrow(0, theirs.begin, theirs.count).copy_(at_place(slab.slot(rank), theirs.count, flat), true);
    }
    sync();
    if (place.slab) ranks_.meet_again();  // its holder may let it go now, and nobody may still read it
  }
}

void CudaCollectives::broadcast(const at::Tensor& tensor, int root) {
  c10::DeviceGuard guard(device_);
  at::Tensor flat = tensor.view({-1});
  const int64_t piece = static_cast<int64_t>(kPieceBytes) / flat.element_size();
  for (int64_t done = 0; done == 0 || done < flat.numel(); done += piece) {
    const int64_t count = std::min(piece, flat.numel() - done);
    at::Tensor part = flat.narrow(0, done, count);
    CudaSlab& slab = staging(static_cast<size_t>(count * flat.element_size()));
    at::Tensor shared = at_place(slab.part(root), count, flat);
    if (ranks_.rank() == root) shared.copy_(part, true);
    sync();
    ranks_.meet({.count = flat.nbytes(), .kind = Kind::broadcast, .root = root});
    if (ranks_.rank() != root) part.copy_(shared, true);
    sync();
    ranks_.meet_again();  // the next writer must not come before the last reader
  }
}

void CudaCollectives::all_gather(const at::Tensor& all, const at::Tensor& mine) {
  c10::DeviceGuard guard(device_);
  at::Tensor out = all.view({ranks_.world(), -1}), in = mine.view({-1});
  const int64_t piece = static_cast<int64_t>(kPieceBytes) / in.element_size();
  for (int64_t done = 0; done == 0 || done < in.numel(); done += piece) {
    const int64_t count = std::min(piece, in.numel() - done);
    CudaSlab& slab = staging(static_cast<size_t>(count * in.element_size()));
    at_place(slab.part(ranks_.rank()), count, in).copy_(in.narrow(0, done, count), true);
    sync();
    ranks_.meet({.count = in.nbytes(), .kind = Kind::all_gather});
    for (int rank = 0; rank < ranks_.world(); ++rank)
      out[rank].narrow(0, done, count).copy_(at_place(slab.part(rank), count, in), true);
    sync();
    ranks_.meet_again();
  }
}

void CudaCollectives::reduce_scatter(const at::Tensor& mine, const at::Tensor& all, const Typed& typed) {
  c10::DeviceGuard guard(device_);
  const int64_t world = ranks_.world();
  at::Tensor out = mine.view({-1}), in = all.view({world, -1});
  const int64_t piece = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes) / out.element_size() / world);
  for (int64_t done = 0; done == 0 || done < out.numel(); done += piece) {
    const int64_t count = std::min(piece, out.numel() - done);
    CudaSlab& slab = staging(static_cast<size_t>(world * count * out.element_size()));
    at_place(slab.part(ranks_.rank()), world * count, out).view({world, count}).copy_(in.narrow(1, done, count), true);
    sync();
    ranks_.meet({.count = static_cast<uint64_t>(out.numel()),
                 .kind = Kind::reduce_scatter,
                 .element = typed.element,
                 .reduction = typed.reduction});
    reduce_slice(slab, 0, out, count, typed, out.narrow(0, done, count), count * ranks_.rank());
    sync();
    ranks_.meet_again();
  }
}

}  // namespace ddip::tensors
