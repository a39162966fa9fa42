#include "ddip/mpi/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ddip/base/error.h"
#include "ddip/mpi/mail.h"
#include "ddip/mpi/types.h"

namespace ddip::mpi {
namespace {

// MPI counts with int. What is reduced or broadcast goes in pieces; what is put together from parts cannot.
constexpr size_t kPiece = size_t{1} << 28;

int small(size_t number, const char* what) {
  if (number > static_cast<size_t>(std::numeric_limits<int>::max()))
    throw ConfigError(
        fmt::format("backend mpi: {} of {} bytes, MPI 3 takes less than 2 GiB in one call", what, number));
  return static_cast<int>(number);
}

// At least once, also for nothing: the other ranks do the same.
void in_pieces(size_t count, const std::function<void(size_t begin, int length)>& body) {
  for (size_t begin = 0; begin == 0 || begin < count; begin += kPiece)
    body(begin, static_cast<int>(std::min(kPiece, count - begin)));
}

std::byte* at(void* data, size_t offset) { return static_cast<std::byte*>(data) + offset; }

struct Layout {
  std::vector<int> counts, begins;
  explicit Layout(std::span<const Part> parts) {
    for (const Part& part : parts) {
      counts.push_back(small(part.bytes, "all_to_all"));
      begins.push_back(small(part.begin, "all_to_all"));
    }
  }
};

}  // namespace

Collectives::Collectives(Process& process, std::chrono::milliseconds patience)
    : process_(process), patience_(patience) {
  for (MPI_Comm* copy : {&ranks_, &mail_}) {
    run("making a communicator", [&](MPI_Request* request) { return MPI_Comm_idup(MPI_COMM_WORLD, copy, request); });
    // An error comes out of the call, and the process goes on.
    process_.call([&] { check(MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"); });
  }
}

void Collectives::run(const char* name, const std::function<int(MPI_Request*)>& begin) {
  std::string what = fmt::format("{} number {}", name, ++number_);
  {
    std::lock_guard lock(mutex_);
    now_ = what;
  }
  waiting_ = true;
  struct Left {
    std::atomic<bool>& waiting;
    ~Left() { waiting = false; }
  } left{waiting_};
  process_.run([&](MPI_Request& request) { check(begin(&request), name); }, patience_, what);
}

std::string Collectives::describe() const {
  std::lock_guard lock(mutex_);
  return now_;
}

void Collectives::barrier() {
  run("barrier", [&](MPI_Request* request) { return MPI_Ibarrier(ranks_, request); });
}

void Collectives::all_reduce(void* data, size_t count, const Typed& typed) {
  comm::require_reducible(typed);
  size_t unit = comm::size_of(typed.element);
  in_pieces(count, [&](size_t begin, int length) {
    void* piece = at(data, begin * unit);
    Reducible values(piece, static_cast<size_t>(length), typed);
    run("all_reduce", [&](MPI_Request* request) {
      return MPI_Iallreduce(MPI_IN_PLACE, values.of(piece), length, values.type(), operation_of(typed.reduction),
                            ranks_, request);
    });
    values.finish(piece, static_cast<size_t>(length), world());
  });
}

void Collectives::reduce(void* data, size_t count, const Typed& typed, int root) {
  comm::require_reducible(typed);
  comm::require_root(root, world());
  size_t unit = comm::size_of(typed.element);
  bool here = rank() == root;
  in_pieces(count, [&](size_t begin, int length) {
    void* piece = at(data, begin * unit);
    Reducible values(piece, static_cast<size_t>(length), typed);
    run("reduce", [&](MPI_Request* request) {
      return MPI_Ireduce(here ? MPI_IN_PLACE : values.of(piece), here ? values.of(piece) : nullptr, length,
                         values.type(), operation_of(typed.reduction), root, ranks_, request);
    });
    if (here) values.finish(piece, static_cast<size_t>(length), world());
  });
}

void Collectives::broadcast(void* data, size_t bytes, int root) {
  comm::require_root(root, world());
  in_pieces(bytes, [&](size_t begin, int length) {
    run("broadcast",
        [&](MPI_Request* request) { return MPI_Ibcast(at(data, begin), length, MPI_BYTE, root, ranks_, request); });
  });
}

void Collectives::all_gather(const void* mine, void* all, size_t bytes) {
  int part = small(bytes, "all_gather");
  run("all_gather",
      [&](MPI_Request* request) { return MPI_Iallgather(mine, part, MPI_BYTE, all, part, MPI_BYTE, ranks_, request); });
}

void Collectives::gather(const void* mine, void* all, size_t bytes, int root) {
  comm::require_root(root, world());
  int part = small(bytes, "gather");
  run("gather", [&](MPI_Request* request) {
    return MPI_Igather(mine, part, MPI_BYTE, all, part, MPI_BYTE, root, ranks_, request);
  });
}

void Collectives::scatter(const void* all, void* mine, size_t bytes, int root) {
  comm::require_root(root, world());
  int part = small(bytes, "scatter");
  run("scatter", [&](MPI_Request* request) {
    return MPI_Iscatter(all, part, MPI_BYTE, mine, part, MPI_BYTE, root, ranks_, request);
  });
}

void Collectives::reduce_scatter(const void* all, void* mine, size_t count, const Typed& typed) {
  comm::require_reducible(typed);
  int part = small(count, "reduce_scatter");
  Reducible values(all, count * static_cast<size_t>(world()), typed), result(mine, count, typed);
  run("reduce_scatter", [&](MPI_Request* request) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): only read
    return MPI_Ireduce_scatter_block(values.of(const_cast<void*>(all)), result.of(mine), part, values.type(),
                                     operation_of(typed.reduction), ranks_, request);
  });
  result.finish(mine, count, world());
}

void Collectives::all_to_all(const void* out, std::span<const Part> to, void* in, std::span<const Part> from) {
  Layout sent(to), received(from);
  run("all_to_all", [&](MPI_Request* request) {
    return MPI_Ialltoallv(out, sent.counts.data(), sent.begins.data(), MPI_BYTE, in, received.counts.data(),
                          received.begins.data(), MPI_BYTE, ranks_, request);
  });
}

std::shared_ptr<std::byte> Collectives::allocate(size_t) {
  throw ConfigError("backend mpi: the ranks share no memory; its capabilities say so");
}

std::unique_ptr<comm::Mail> Collectives::open_mail() { return std::make_unique<Mail>(process_, mail_, patience_); }

}  // namespace ddip::mpi
