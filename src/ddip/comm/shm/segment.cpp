#include "ddip/comm/shm/segment.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/base/futex.h"
#include "ddip/comm/shm/shared_file.h"

namespace ddip::comm::shm {
namespace {

constexpr uint64_t kMagic = 0x316d68735f706464;  // "ddp_shm1"
constexpr size_t kPage = 4096;
constexpr size_t kHeaderBytes = (sizeof(Header) + kPage - 1) / kPage * kPage;

size_t total_bytes(int world, size_t arena_bytes) { return kHeaderBytes + static_cast<size_t>(world) * arena_bytes; }

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::none: return "nothing";
    case Kind::barrier: return "barrier";
    case Kind::all_reduce: return "all_reduce";
    case Kind::reduce: return "reduce";
    case Kind::broadcast: return "broadcast";
    case Kind::all_gather: return "all_gather";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::gather: return "gather";
    case Kind::scatter: return "scatter";
    case Kind::all_to_all: return "all_to_all";
    case Kind::allocate: return "empty";
  }
  return "?";
}

bool Operation::agrees_with(const Operation& other) const {
  return sequence == other.sequence && count == other.count && kind == other.kind && element == other.element &&
         reduction == other.reduction && symmetric == other.symmetric && root == other.root && place == other.place;
}

std::string describe(const Operation& operation) {
  if (operation.kind == Kind::none) return "nothing yet";
  std::string text = fmt::format("{} number {}", name_of(operation.kind), operation.sequence);
  if (operation.kind == Kind::barrier) return text;
  text += fmt::format(" of {} {}", operation.count, name_of(operation.element));
  switch (operation.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
    case Kind::reduce_scatter: text += fmt::format(" ({})", name_of(operation.reduction)); break;
    default: break;
  }
  if (operation.root >= 0) text += fmt::format(", root {}", operation.root);
  if (operation.symmetric) text += ", in shared memory";
  return text;
}

void Bell::ring() {
  rung.fetch_add(1);
  if (watchers.load() == 0 && sleepers.load() > 0) futex_wake_all(rung);
}

void Bell::wait(uint32_t heard, std::chrono::nanoseconds patience) {
  sleepers.fetch_add(1);
  if (rung.load() == heard) futex_wait(rung, heard, patience);
  sleepers.fetch_sub(1);
}

Segment Segment::create(int world, size_t arena_bytes) {
  if (world < 1 || world > kMaxRanks)
    throw ConfigError(fmt::format("shared memory serves 1 to {} ranks, not {}", kMaxRanks, world));
  Fd file(::memfd_create("ddip-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw_errno("memfd for a communicator");
  size_t bytes = total_bytes(world, arena_bytes);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) throw_errno("size of shared memory");
  void* memory = map_shared(file, bytes);
  Header* header = new (memory) Header{};
  header->world = static_cast<uint32_t>(world);
  header->arena_bytes = arena_bytes;
  header->magic = kMagic;
  return Segment(std::move(file), memory, bytes);
}

Segment Segment::open(Fd file, int world) {
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) throw_errno("shared memory of rank 0");
  size_t bytes = static_cast<size_t>(about.st_size);
  if (bytes < kHeaderBytes) throw ProtocolError("what rank 0 offers is no shared memory of ours");
  Segment segment(std::move(file), nullptr, bytes);
  segment.memory_ = map_shared(segment.file_, bytes);
  const Header& header = segment.header();
  if (header.magic != kMagic || header.world != static_cast<uint32_t>(world) ||
      bytes != total_bytes(world, header.arena_bytes))
    throw ProtocolError("what rank 0 offers is no shared memory of ours");
  return segment;
}

Segment::Segment(Segment&& other) noexcept
    : file_(std::move(other.file_)), memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}

Segment::~Segment() {
  if (memory_) ::munmap(memory_, bytes_);
}

std::span<std::byte> Segment::arena(int rank) const {
  size_t size = header().arena_bytes;
  return {static_cast<std::byte*>(memory_) + kHeaderBytes + static_cast<size_t>(rank) * size, size};
}

void Segment::poison(uint32_t reason) const {
  uint32_t well = 0;
  header().poison.compare_exchange_strong(well, reason);
  for (int rank = 0; rank < world(); ++rank) {
    futex_wake_all(line(rank).stage);
    line(rank).bell.ring();
  }
}

void Segment::leave(int rank) const {
  line(rank).left.store(1);
  futex_wake_all(line(rank).stage);
  for (int peer = 0; peer < world(); ++peer) line(peer).bell.ring();
}

}  // namespace ddip::comm::shm
