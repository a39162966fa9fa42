#include "ddip/comm/shm/shared_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include "ddip/base/error.h"

namespace ddip::comm::shm {

Fd open_file_of(int pid, int number) {
  return Fd(::open(fmt::format("/proc/{}/fd/{}", pid, number).c_str(), O_RDWR | O_CLOEXEC));
}

std::byte* map_shared(const Fd& file, size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (memory == MAP_FAILED) throw_errno("map shared memory");
  ::madvise(memory, bytes, MADV_DONTDUMP);  // a core file need not hold gigabytes of it
  return static_cast<std::byte*>(memory);
}

}  // namespace ddip::comm::shm
