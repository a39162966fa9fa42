// The memory that the ranks of one communicator share: a line per rank to meet at, and an arena per rank to put data
// in. Anonymous (memfd): it has no name, and is gone with the last process that holds it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ddip/base/fd.h"
#include "ddip/comm/element.h"

namespace ddip::comm::shm {

constexpr int kMaxRanks = 64;

enum class Kind : uint8_t {
  none,
  barrier,
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all,
  allocate,
};

const char* name_of(Kind kind);

// What a rank says it does. All ranks must say the same.
struct Operation {
  uint64_t sequence = 0;
  uint64_t count = 0;  // elements or bytes, whatever must be equal on all ranks
  Kind kind = Kind::none;
  Element element = Element::u8;
  Reduction reduction = Reduction::sum;
  bool symmetric = false;  // the data lies at the same place of memory that all ranks see
  int32_t root = -1;
  uint64_t place = 0;  // where it lies there

  bool agrees_with(const Operation& other) const;
};

// "all_reduce number 7 of 1024 float32 (sum)"
std::string describe(const Operation& operation);

// Others ring it; somebody listens. Who watches `rung` need not be woken, but has to look again after it has stopped.
struct Bell {
  std::atomic<uint32_t> rung;
  std::atomic<uint32_t> sleepers;
  std::atomic<uint32_t> watchers;

  void ring();
  // Until it rings after `heard`, or the time is over.
  void wait(uint32_t heard, std::chrono::nanoseconds patience);
};

// A line of its own per rank, so that ranks do not fight for one.
struct alignas(128) RankLine {
  std::atomic<uint32_t> stage;     // meetings this rank has come to; others sleep on it
  std::atomic<uint32_t> sleepers;  // how many do
  std::atomic<int32_t> pid;        // 0: not there yet
  std::atomic<uint32_t> left;      // it went in good order, and comes to no meeting any more
  Bell bell;                       // something changed in its letter boxes
  // Written before `stage`. Two, used in turn: one is not written again before everybody has read it, because that
  // takes a meeting that everybody comes to afterwards.
  Operation operations[2];

  Operation& operation(uint64_t sequence) { return operations[sequence % 2]; }
  const Operation& newest() const { return operations[operations[0].sequence < operations[1].sequence]; }
};

struct Header {
  uint64_t magic;
  uint32_t world;
  uint32_t reserved;
  uint64_t arena_bytes;
  uint64_t nonce;
  // 0: all is well. Otherwise nobody waits any more: 1 + the rank that was lost, or kAborted.
  alignas(128) std::atomic<uint32_t> poison;
  // How the newest meeting ended that anybody left: 2 × its stage, and 1 more if it was given up, which is for good.
  // The first rank that leaves a meeting decides for all of them, so that none keeps a step that another has dropped.
  alignas(128) std::atomic<uint64_t> verdict;
  RankLine ranks[kMaxRanks];
};

constexpr uint32_t kAborted = 0xffffffff;

class Segment {
 public:
  // The first rank makes it; its descriptor goes to the others.
  static Segment create(int world, size_t arena_bytes);
  static Segment open(Fd file, int world);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  Header& header() const { return *static_cast<Header*>(memory_); }
  RankLine& line(int rank) const { return header().ranks[rank]; }
  std::span<std::byte> arena(int rank) const;
  int world() const { return static_cast<int>(header().world); }
  const Fd& file() const { return file_; }
  void close_file() { file_.reset(); }

  // Nobody waits any more, here or elsewhere. The first reason stays.
  void poison(uint32_t reason) const;
  // This rank comes to no meeting any more.
  void leave(int rank) const;

 private:
  Segment(Fd file, void* memory, size_t bytes) : file_(std::move(file)), memory_(memory), bytes_(bytes) {}

  Fd file_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace ddip::comm::shm
