// Files without a name that the ranks of one host share: how another rank's is opened, and how one is mapped.
#pragma once

#include <cstddef>

#include "ddip/base/fd.h"

namespace ddip::comm::shm {

// Through /proc, which lets in the same user only. Empty if it cannot be had; errno says why.
Fd open_file_of(int pid, int number);

// All of it, not reserved: most of it is never touched. Throws.
std::byte* map_shared(const Fd& file, size_t bytes);

}  // namespace ddip::comm::shm
