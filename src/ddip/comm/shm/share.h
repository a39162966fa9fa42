// One segment for all ranks of this host: the first makes it, the others open it through /proc, which lets in the same
// user only. No name in a file system, no socket.
#pragma once

#include "ddip/comm/shm/segment.h"
#include "ddip/comm/store.h"

namespace ddip::comm::shm {

// REQUIRES: all ranks call it with the same key. Throws ConfigError if the ranks are not on one host.
Segment share(Store& store, const std::string& key, int rank, int world, size_t arena_bytes);

}  // namespace ddip::comm::shm
