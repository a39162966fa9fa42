#include "ddip/comm/shm/slab.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/comm/shm/shared_file.h"

namespace ddip::comm::shm {
namespace {

constexpr size_t kPage = 4096;

size_t whole_pages(size_t bytes) { return (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage; }

}  // namespace

Slab::Slab(Fd file, int world, size_t bytes)
    : file_(std::move(file)),
      part_bytes_(whole_pages(bytes)),
      // A slot holds the slice that one rank reduces.
      stride_(part_bytes_ + whole_pages(part_bytes_ / static_cast<size_t>(world) + kPage)),
      total_(static_cast<size_t>(world) * stride_) {}

Slab Slab::create(int world, size_t bytes) {
  Fd file(::memfd_create("ddip-slab", MFD_CLOEXEC));
  if (!file) throw_errno("memfd for shared tensors");
  Slab slab(std::move(file), world, bytes);
  if (::ftruncate(slab.file_.get(), static_cast<off_t>(slab.total_)) != 0) throw_errno("size of shared tensors");
  slab.memory_ = map_shared(slab.file_, slab.total_);
  return slab;
}

Slab Slab::open(const Offer& offer, int world, size_t bytes) {
  Fd file = open_file_of(offer.pid, offer.file);
  if (!file) throw_errno("open shared tensors of another rank");
  Slab slab(std::move(file), world, bytes);
  struct stat about{};
  if (::fstat(slab.file_.get(), &about) != 0) throw_errno("shared tensors of another rank");
  if (static_cast<size_t>(about.st_size) != slab.total_)
    throw ProtocolError("what another rank offers are no shared tensors of this size");
  slab.memory_ = map_shared(slab.file_, slab.total_);
  return slab;
}

Slab::Slab(Slab&& other) noexcept
    : file_(std::move(other.file_)),
      part_bytes_(other.part_bytes_),
      stride_(other.stride_),
      total_(other.total_),
      memory_(std::exchange(other.memory_, nullptr)) {}

Slab::~Slab() {
  if (memory_) ::munmap(memory_, total_);
}

Slab::Offer Slab::offer() const { return {::getpid(), file_.get()}; }

}  // namespace ddip::comm::shm
