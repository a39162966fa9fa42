#include "ddip/comm/shm/share.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "ddip/base/error.h"
#include "ddip/comm/shm/shared_file.h"

namespace ddip::comm::shm {
namespace {

// Proves that what was opened is what was offered: process numbers are used again, and differ between hosts.
uint64_t make_nonce() {
  uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) throw_errno("random number");
  return nonce;
}

}  // namespace

Segment share(Store& store, const std::string& key, int rank, int world, size_t arena_bytes) {
  if (rank == 0) {
    Segment segment = Segment::create(world, arena_bytes);
    uint64_t nonce = make_nonce();
    segment.header().nonce = nonce;
    segment.line(0).pid = ::getpid();
    store.set(key, fmt::format("{} {} {}", ::getpid(), segment.file().get(), nonce));
    return segment;
  }
  std::string offer = store.get(key);
  int pid = 0, number = 0;
  unsigned long nonce = 0;
  if (std::sscanf(offer.c_str(), "%d %d %lu", &pid, &number, &nonce) != 3)
    throw ProtocolError("shared memory: rank 0 offers nothing that can be read");
  Fd file = open_file_of(pid, number);
  if (!file)
    throw ConfigError(fmt::format("rank {} cannot open the shared memory of rank 0 (pid {}): {}; are they on one host?",
                                  rank, pid, std::strerror(errno)));
  Segment segment = Segment::open(std::move(file), world);
  if (segment.header().nonce != nonce)
    throw ConfigError(fmt::format("rank {} does not see the shared memory of rank 0: they are not on one host", rank));
  segment.line(rank).pid = ::getpid();
  return segment;
}

}  // namespace ddip::comm::shm
