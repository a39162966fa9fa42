#include "ddip/mpi/mail.h"

#include <fmt/format.h>

#include <limits>

#include "ddip/base/error.h"

namespace ddip::mpi {
namespace {

// The least that every MPI has; more of them would need the asking of MPI_TAG_UB.
constexpr int64_t kLargestTag = 32767;

int tag_of(int64_t tag) {
  if (tag < 0 || tag > kLargestTag)
    throw ConfigError(fmt::format("backend mpi: tag {}, one from 0 to {} was expected", tag, kLargestTag));
  return static_cast<int>(tag);
}

int length_of(size_t bytes) {
  if (bytes > static_cast<size_t>(std::numeric_limits<int>::max()))
    throw ConfigError(fmt::format("backend mpi: a message of {} bytes, MPI 3 takes less than 2 GiB in one", bytes));
  return static_cast<int>(bytes);
}

}  // namespace

void Mail::require_peer(int peer) const {
  if (peer < 0 || peer >= process_.world() || peer == process_.rank())
    throw ConfigError(fmt::format("rank {} cannot exchange messages with rank {}", process_.rank(), peer));
}

void Mail::send(int to, int64_t tag, const void* data, size_t bytes, Done done) {
  require_peer(to);
  int number = tag_of(tag), length = length_of(bytes);
  process_.start(
      [=, ranks = ranks_](MPI_Request& request) {
        check(MPI_Isend(data, length, MPI_BYTE, to, number, ranks, &request), "send");
      },
      patience_, fmt::format("send to rank {}", to),
      [done = std::move(done), to](std::exception_ptr error, const MPI_Status&) { done(std::move(error), to); });
}

void Mail::receive(int from, int64_t tag, void* data, size_t bytes, Done done) {
  if (from != comm::kAnyRank) require_peer(from);
  int number = tag_of(tag), length = length_of(bytes);
  int source = from == comm::kAnyRank ? MPI_ANY_SOURCE : from;
  process_.start(
      [=, ranks = ranks_](MPI_Request& request) {
        check(MPI_Irecv(data, length, MPI_BYTE, source, number, ranks, &request), "receive");
      },
      patience_, from == comm::kAnyRank ? "receive from any rank" : fmt::format("receive from rank {}", from),
      [done = std::move(done), length, rank = process_.rank()](std::exception_ptr error, const MPI_Status& status) {
        int sent = 0;
        if (!error) MPI_Get_count(&status, MPI_BYTE, &sent);
        if (!error && sent != length)
          error = std::make_exception_ptr(ConfigError(
              fmt::format("rank {} sent {} bytes, rank {} expected {}", status.MPI_SOURCE, sent, rank, length)));
        done(std::move(error), status.MPI_SOURCE);
      },
      /*receive=*/true);
}

}  // namespace ddip::mpi
