// What every backend of ours can do, on plain memory: the ranks make the same calls in the same order, from one thread
// at a time. shm/ has it over shared memory, ddip/mpi over MPI.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddip/comm/element.h"

namespace ddip::comm {

// What a backend promises. One suite of tests asserts it for each.
struct Capabilities {
  bool shared_tensors = false;    // allocate() gives memory that all ranks see, and all_reduce on it copies less
  bool identical_bits = false;    // a reduction gives every rank the same bits
  bool wide_sums = false;         // 16-bit floats are reduced in 32 bits and rounded once
  bool names_mismatch = false;    // ranks that make different calls get an error that names both
  bool notices_death = false;     // a killed rank is an error on the others at once, not after the timeout
  bool aborts = false;            // abort() ends what waits, on all ranks
  bool measures_waiting = false;  // waited() says for whom
};

struct Typed {
  Element element = Element::u8;
  Reduction reduction = Reduction::sum;
  double scale = 1.0;  // of a scaled sum
};

struct Part {
  size_t begin = 0;
  size_t bytes = 0;
};

constexpr int kAnyRank = -1;

// Messages between two ranks, in order for each pair and tag.
class Mail {
 public:
  // Called once, on a thread of the backend's or of who sends, receives or helps: with the error, or without one and
  // the rank at the other end.
  using Done = std::function<void(std::exception_ptr error, int peer)>;

  virtual ~Mail() = default;
  // The memory must stay until `done`.
  virtual void send(int to, int64_t tag, const void* data, size_t bytes, Done done) = 0;
  virtual void receive(int from, int64_t tag, void* data, size_t bytes, Done done) = 0;  // from kAnyRank too
  // For a moment, until it is enough: a thread that has nothing else to do moves messages itself.
  virtual void help(const std::function<bool()>& /*enough*/) {}
  // Of what is sent and received from now on. From any thread.
  virtual void set_patience(std::chrono::milliseconds patience) = 0;
};

class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual void barrier() = 0;
  // in place
  virtual void all_reduce(void* data, size_t count, const Typed& typed) = 0;
  virtual void reduce(void* data, size_t count, const Typed& typed, int root) = 0;  // other ranks' data is untouched
  virtual void broadcast(void* data, size_t bytes, int root) = 0;
  // all: world() parts of `bytes` each, in rank order
  virtual void all_gather(const void* mine, void* all, size_t bytes) = 0;
  virtual void gather(const void* mine, void* all, size_t bytes, int root) = 0;   // `all` on root only
  virtual void scatter(const void* all, void* mine, size_t bytes, int root) = 0;  // likewise
  // all: world() parts of `count` elements each; mine: the reduced part of this rank
  virtual void reduce_scatter(const void* all, void* mine, size_t count, const Typed& typed) = 0;
  // Part r of `out` goes to rank r; parts may differ in size, and a pair need agree with nobody else.
  virtual void all_to_all(const void* out, std::span<const Part> to, void* in, std::span<const Part> from) = 0;

  // Memory that all ranks see, at the same place for each. It is freed when its last holder lets go, on each rank by
  // itself. Only where shared_tensors is declared.
  virtual std::shared_ptr<std::byte> allocate(size_t bytes) = 0;
  virtual std::unique_ptr<Mail> open_mail() = 0;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  virtual Capabilities capabilities() const = 0;
  // Also of mail that is opened later; what is open has its own.
  virtual void set_patience(std::chrono::milliseconds patience) = 0;
  // The operation and its number that this rank is in, or was in last, in words. From any thread, as the next two.
  virtual std::string describe() const = 0;
  virtual bool is_waiting() const = 0;
  // Seconds this rank has waited for each of the others so far; empty where that is not measured.
  virtual std::vector<double> waited() const = 0;
};

// Throw ConfigError.
void require_reducible(const Typed& typed);
void require_root(int root, int world);

}  // namespace ddip::comm
