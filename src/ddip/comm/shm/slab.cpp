#include "ddip/comm/shm/slab.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ddip/base/error.h"

namespace ddip::comm::shm {
namespace {

constexpr size_t kPage = 4096;

size_t whole_pages(size_t bytes) { return (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage; }

std::byte* map(const Fd& file, size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (memory == MAP_FAILED) throw_errno("map shared tensors");
  ::madvise(memory, bytes, MADV_DONTDUMP);  // a core file need not hold gigabytes of it
  return static_cast<std::byte*>(memory);
}

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
  slab.memory_ = map(slab.file_, slab.total_);
  return slab;
}

Slab Slab::open(const Offer& offer, int world, size_t bytes) {
  Fd file(::open(fmt::format("/proc/{}/fd/{}", offer.pid, offer.file).c_str(), O_RDWR | O_CLOEXEC));
  if (!file) throw_errno("open shared tensors of another rank");
  Slab slab(std::move(file), world, bytes);
  struct stat about{};
  if (::fstat(slab.file_.get(), &about) != 0) throw_errno("shared tensors of another rank");
  if (static_cast<size_t>(about.st_size) != slab.total_)
    throw ProtocolError("what another rank offers are no shared tensors of this size");
  slab.memory_ = map(slab.file_, slab.total_);
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
