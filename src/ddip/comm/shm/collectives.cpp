#include "ddip/comm/shm/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ddip/base/error.h"
#include "ddip/comm/reduce.h"

namespace ddip::comm::shm {
namespace {

constexpr size_t kPieceBytes = 8u << 20;
// Up to here every rank reduces everything itself: one meeting instead of two.
constexpr size_t kSmallBytes = 16u << 10;
constexpr size_t kLine = 128;
// An activation of a usual size between two stages of a pipeline goes through at once.
constexpr size_t kRingBytes = 256u << 10, kLeastRingBytes = 16u << 10;

// Elements of a part that belong to one rank.
struct Slice {
  size_t begin;
  size_t count;
};
Slice slice_of(int rank, int world, size_t count) {
  size_t begin = count * static_cast<size_t>(rank) / static_cast<size_t>(world);
  size_t end = count * static_cast<size_t>(rank + 1) / static_cast<size_t>(world);
  return {begin, end - begin};
}

const std::byte* at(const void* data, size_t offset) { return static_cast<const std::byte*>(data) + offset; }
std::byte* at(void* data, size_t offset) { return static_cast<std::byte*>(data) + offset; }

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

Collectives::Collectives(const Segment& segment, int rank, std::chrono::milliseconds patience)
    : segment_(segment), rank_(rank), patience_(patience), meeting_(segment, rank, patience) {
  size_t arena = segment.arena(rank).size();
  piece_bytes_ = std::min(kPieceBytes, arena / 8 / kLine * kLine);
  if (piece_bytes_ < static_cast<size_t>(world()) * 2 * sizeof(uint64_t)) throw ConfigError("the arena is too small");
  ring_bytes_ = std::min(kRingBytes, (arena - rings_begin()) / static_cast<size_t>(world()) / kLine * kLine);
  if (ring_bytes_ < kLeastRingBytes) throw ConfigError("the arena is too small");
}

Collectives::Half Collectives::half(int rank) const {
  std::byte* begin = segment_.arena(rank).data() + turn_ % 2 * 2 * piece_bytes_;
  return {begin, begin + piece_bytes_};
}

Capabilities Collectives::capabilities() const {
  return {.shared_tensors = true,
          .identical_bits = true,
          .wide_sums = true,
          .names_mismatch = true,
          .notices_death = true,
          .aborts = true,
          .measures_waiting = true};
}

void Collectives::in_pieces(const Operation& operation, size_t bytes, size_t piece, const Step& put, const Step& take) {
  for (size_t offset = 0; offset == 0 || offset < bytes; offset += piece) {
    size_t length = std::min(piece, bytes - offset);
    put(offset, length);
    if (offset == 0)
      meeting_.begin(operation);
    else
      meeting_.again();
    take(offset, length);
    ++turn_;
  }
}

// The parts of all ranks in their halves, at the same offset in each.
void Collectives::reduce_halves(const Typed& typed, size_t offset, void* out, size_t count) const {
  const void* inputs[kMaxRanks];
  for (int rank = 0; rank < world(); ++rank) inputs[rank] = half(rank).data + offset;
  comm::reduce(typed.element, typed.reduction, typed.scale, {inputs, static_cast<size_t>(world())}, out, count);
}

void Collectives::barrier() { meeting_.begin({.kind = Kind::barrier}); }

void Collectives::all_reduce(void* data, size_t count, const Typed& typed) {
  require_reducible(typed);
  Operation operation{.count = count, .kind = Kind::all_reduce, .element = typed.element, .reduction = typed.reduction};
  if (auto [slab, number] = find_symmetric(data, count * size_of(typed.element)); slab) {
    operation.symmetric = true;
    operation.place = number << 48 | static_cast<size_t>(at(data, 0) - slab->part(rank_));
    // Little is sooner copied than met for twice; but it must be the same little everywhere.
    if (count * size_of(typed.element) > std::min(kSmallBytes, piece_bytes_))
      return all_reduce_symmetric(*slab, operation, data, count, typed);
  }
  size_t unit = size_of(typed.element);
  size_t bytes = count * unit;
  if (bytes <= std::min(kSmallBytes, piece_bytes_)) {
    return in_pieces(
        operation, bytes, piece_bytes_, [&](size_t, size_t length) { copy_bytes(half(rank_).data, data, length); },
        [&](size_t, size_t length) { reduce_halves(typed, 0, data, length / unit); });
  }
  in_pieces(
      operation, bytes, piece_bytes_,
      [&](size_t offset, size_t length) { copy_bytes(half(rank_).data, at(data, offset), length); },
      [&](size_t offset, size_t length) {
        Slice mine = slice_of(rank_, world(), length / unit);
        reduce_halves(typed, mine.begin * unit, half(rank_).result, mine.count);
        meeting_.again();
        for (int rank = 0; rank < world(); ++rank) {
          Slice slice = slice_of(rank, world(), length / unit);
          copy_bytes(at(data, offset + slice.begin * unit), half(rank).result, slice.count * unit);
        }
      });
}

// Two meetings whatever its size, and nothing is written to anybody's data before the second: who dies earlier leaves
// everything as it was, who dies later has given its part.
void Collectives::all_reduce_symmetric(const Slab& slab, const Operation& operation, void* data, size_t count,
                                       const Typed& typed) {
  size_t offset = static_cast<size_t>(at(data, 0) - slab.part(rank_));
  meeting_.begin(operation);
  size_t unit = size_of(typed.element);
  Slice mine = slice_of(rank_, world(), count);
  const void* inputs[kMaxRanks];
  for (int rank = 0; rank < world(); ++rank) inputs[rank] = slab.part(rank) + offset + mine.begin * unit;
  comm::reduce(typed.element, typed.reduction, typed.scale, {inputs, static_cast<size_t>(world())}, slab.slot(rank_),
               mine.count);
  meeting_.again();
  for (int rank = 0; rank < world(); ++rank) {
    Slice slice = slice_of(rank, world(), count);
    copy_bytes(at(data, slice.begin * unit), slab.slot(rank), slice.count * unit);
  }
}

void Collectives::reduce(void* data, size_t count, const Typed& typed, int root) {
  require_reducible(typed);
  require_root(root, world());
  Operation operation{
      .count = count, .kind = Kind::reduce, .element = typed.element, .reduction = typed.reduction, .root = root};
  size_t unit = size_of(typed.element);
  in_pieces(
      operation, count * unit, piece_bytes_,
      [&](size_t offset, size_t length) { copy_bytes(half(rank_).data, at(data, offset), length); },
      [&](size_t offset, size_t length) {
        if (rank_ == root) reduce_halves(typed, 0, at(data, offset), length / unit);
      });
}

void Collectives::broadcast(void* data, size_t bytes, int root) {
  require_root(root, world());
  in_pieces(
      {.count = bytes, .kind = Kind::broadcast, .root = root}, bytes, piece_bytes_,
      [&](size_t offset, size_t length) {
        if (rank_ == root) copy_bytes(half(rank_).data, at(data, offset), length);
      },
      [&](size_t offset, size_t length) {
        if (rank_ != root) copy_bytes(at(data, offset), half(root).data, length);
      });
}

void Collectives::all_gather(const void* mine, void* all, size_t bytes) {
  in_pieces(
      {.count = bytes, .kind = Kind::all_gather}, bytes, piece_bytes_,
      [&](size_t offset, size_t length) { copy_bytes(half(rank_).data, at(mine, offset), length); },
      [&](size_t offset, size_t length) {
        for (int rank = 0; rank < world(); ++rank)
          copy_bytes(at(all, static_cast<size_t>(rank) * bytes + offset), half(rank).data, length);
      });
}

void Collectives::gather(const void* mine, void* all, size_t bytes, int root) {
  require_root(root, world());
  in_pieces(
      {.count = bytes, .kind = Kind::gather, .root = root}, bytes, piece_bytes_,
      [&](size_t offset, size_t length) { copy_bytes(half(rank_).data, at(mine, offset), length); },
      [&](size_t offset, size_t length) {
        if (rank_ != root) return;
        for (int rank = 0; rank < world(); ++rank)
          copy_bytes(at(all, static_cast<size_t>(rank) * bytes + offset), half(rank).data, length);
      });
}

void Collectives::scatter(const void* all, void* mine, size_t bytes, int root) {
  require_root(root, world());
  size_t share = share_bytes();
  in_pieces(
      {.count = bytes, .kind = Kind::scatter, .root = root}, bytes, share,
      [&](size_t offset, size_t length) {
        if (rank_ != root) return;
        for (size_t rank = 0; rank < static_cast<size_t>(world()); ++rank)
          copy_bytes(half(rank_).data + rank * share, at(all, rank * bytes + offset), length);
      },
      [&](size_t offset, size_t length) {
        copy_bytes(at(mine, offset), half(root).data + static_cast<size_t>(rank_) * share, length);
      });
}

void Collectives::reduce_scatter(const void* all, void* mine, size_t count, const Typed& typed) {
  require_reducible(typed);
  size_t unit = size_of(typed.element);
  size_t bytes = count * unit;
  size_t share = share_bytes();
  in_pieces(
      {.count = count, .kind = Kind::reduce_scatter, .element = typed.element, .reduction = typed.reduction}, bytes,
      share,
      [&](size_t offset, size_t length) {
        for (size_t rank = 0; rank < static_cast<size_t>(world()); ++rank)
          copy_bytes(half(rank_).data + rank * share, at(all, rank * bytes + offset), length);
      },
      [&](size_t offset, size_t length) {
        reduce_halves(typed, static_cast<size_t>(rank_) * share, at(mine, offset), length / unit);
      });
}

void Collectives::all_to_all(const void* out, std::span<const Part> to, void* in, std::span<const Part> from) {
  size_t ranks = static_cast<size_t>(world());
  if (to.size() != ranks || from.size() != ranks)
    throw ConfigError(fmt::format("all_to_all needs {} parts each way, not {} and {}", ranks, to.size(), from.size()));
  // Who sends how much to whom is told first: the number of pieces must be the same everywhere.
  auto* sizes = reinterpret_cast<uint64_t*>(half(rank_).data);
  for (size_t rank = 0; rank < ranks; ++rank) sizes[rank] = to[rank].bytes;
  meeting_.begin({.kind = Kind::all_to_all});
  size_t longest = 0;
  std::string wrong;
  for (size_t sender = 0; sender < ranks; ++sender) {
    const auto* theirs = reinterpret_cast<const uint64_t*>(half(static_cast<int>(sender)).data);
    longest = std::max<size_t>(longest, *std::max_element(theirs, theirs + ranks));
    if (theirs[rank_] != from[sender].bytes)
      wrong = fmt::format("all_to_all: rank {} sends {} bytes, rank {} expects {}", sender, theirs[rank_], rank_,
                          from[sender].bytes);
  }
  ++turn_;
  if (!wrong.empty()) {
    segment_.poison(kAborted);  // the others would wait for us
    throw ConfigError(wrong);
  }
  size_t share = share_bytes();
  for (size_t offset = 0; offset < longest; offset += share) {
    auto length = [&](const Part& part) { return part.bytes > offset ? std::min(share, part.bytes - offset) : 0; };
    for (size_t rank = 0; rank < ranks; ++rank)
      copy_bytes(half(rank_).data + rank * share, at(out, to[rank].begin + offset), length(to[rank]));
    meeting_.again();
    for (size_t rank = 0; rank < ranks; ++rank)
      copy_bytes(at(in, from[rank].begin + offset),
                 half(static_cast<int>(rank)).data + static_cast<size_t>(rank_) * share, length(from[rank]));
    ++turn_;
  }
}

std::unique_ptr<comm::Mail> Collectives::open_mail() {
  return std::make_unique<Mail>(segment_, rank_, rings_begin(), ring_bytes_, patience_);
}

size_t Collectives::share_bytes() const { return piece_bytes_ / static_cast<size_t>(world()) / kLine * kLine; }

std::shared_ptr<std::byte> Collectives::allocate(size_t bytes) {
  meeting_.begin({.count = bytes, .kind = Kind::allocate});
  std::shared_ptr<Slab> slab;
  std::string error;
  auto attempt = [&](auto&& make) {
    try {
      slab = std::make_shared<Slab>(make());
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  };
  Slab::Offer offer;
  if (rank_ == 0) {
    attempt([&] { return Slab::create(world(), bytes); });
    if (slab) offer = slab->offer();
  }
  broadcast(&offer, sizeof offer, 0);
  if (rank_ != 0 && offer.pid != 0) attempt([&] { return Slab::open(offer, world(), bytes); });
  // Everybody has it or nobody: the first rank that failed, as 1 + its number from the end.
  int32_t failed = slab ? 0 : world() - rank_;
  all_reduce(&failed, 1, {Element::i32, Reduction::max});
  if (failed != 0)
    throw ConfigError(fmt::format("{} MiB of shared memory are not to be had on rank {}{}", bytes >> 20,
                                  world() - failed, error.empty() ? "" : ": " + error));
  slab->close_file();
  std::erase_if(allocated_, [](const Allocated& one) { return one.slab.expired(); });
  allocated_.push_back({++allocations_, slab});
  return {slab, slab->part(rank_)};
}

std::pair<std::shared_ptr<Slab>, uint64_t> Collectives::find_symmetric(const void* data, size_t bytes) {
  for (const Allocated& one : allocated_) {
    std::shared_ptr<Slab> slab = one.slab.lock();
    if (slab && slab->part(rank_) <= at(data, 0) && at(data, bytes) <= slab->part(rank_) + slab->bytes())
      return {slab, one.number};
  }
  return {};
}

}  // namespace ddip::comm::shm
