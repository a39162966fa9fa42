// Collective operations over a segment, on plain memory. Every rank makes the same calls in the same order, from one
// thread at a time. Results are the same bits on every rank: each element is reduced once, in the order of the ranks.
//
// Data goes through the arenas in pieces. Each piece is put into one half of the own arena, everybody meets, each takes
// what it needs from the others' halves; the next piece goes into the other half, so that one meeting per piece is
// enough: who comes to the next meeting has taken what was in this one.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ddip/comm/shm/mail.h"
#include "ddip/comm/shm/meeting.h"
#include "ddip/comm/shm/slab.h"

namespace ddip::comm::shm {

struct Typed {
  Element element = Element::u8;
  Reduction reduction = Reduction::sum;
  double scale = 1.0;  // of a scaled sum
};

class Collectives {
 public:
  Collectives(const Segment& segment, int rank, std::chrono::milliseconds patience);

  void barrier();
  // in place
  void all_reduce(void* data, size_t count, const Typed& typed);
  void reduce(void* data, size_t count, const Typed& typed, int root);  // other ranks' data is untouched
  void broadcast(void* data, size_t bytes, int root);
  // all: world() parts of `bytes` each, in rank order
  void all_gather(const void* mine, void* all, size_t bytes);
  void gather(const void* mine, void* all, size_t bytes, int root);   // `all` on root only
  void scatter(const void* all, void* mine, size_t bytes, int root);  // likewise
  // all: world() parts of `count` elements each; mine: the reduced part of this rank
  void reduce_scatter(const void* all, void* mine, size_t count, const Typed& typed);
  // Part r of `out` goes to rank r; parts may differ in size, and a pair need agree with nobody else.
  struct Part {
    size_t begin = 0;
    size_t bytes = 0;
  };
  void all_to_all(const void* out, std::span<const Part> to, void* in, std::span<const Part> from);

  // Memory that all ranks see, at the same place for each: all_reduce on it reads the peers' directly. It is freed when
  // its last holder lets go, on each rank by itself.
  std::shared_ptr<std::byte> allocate(size_t bytes);

  // For data that does not lie in the segment (on a GPU): all ranks meet, and agree on what they do; then meet again.
  void meet(const Operation& operation) { meeting_.begin(operation); }
  void meet_again() { meeting_.again(); }

  // Messages between two ranks, through a part of the arena of their own.
  std::unique_ptr<Mail> open_mail() const;

  void set_patience(std::chrono::milliseconds patience) { meeting_.set_patience(patience); }

  int rank() const { return rank_; }
  int world() const { return segment_.world(); }
  std::string describe() const { return meeting_.describe(); }
  bool is_waiting() const { return meeting_.is_waiting(); }
  std::vector<double> waited() const { return meeting_.waited(); }

 private:
  // One rank's half of a piece.
  struct Half {
    std::byte* data;    // what the rank puts in
    std::byte* result;  // what it has reduced
  };
  // Memory that allocate() gave, and the how-manieth it was: the same on all ranks.
  struct Allocated {
    uint64_t number;
    std::weak_ptr<Slab> slab;
  };
  using Step = std::function<void(size_t offset, size_t bytes)>;

  Half half(int rank) const;
  void require_root(int root) const;
  // For each piece of `bytes` in all: put, meet, take.
  void in_pieces(const Operation& operation, size_t bytes, size_t piece, const Step& put, const Step& take);
  void reduce_halves(const Typed& typed, size_t offset, void* out, size_t count) const;
  void all_reduce_symmetric(const Slab& slab, const Operation& operation, void* data, size_t count, const Typed& typed);
  size_t rings_begin() const { return 4 * piece_bytes_; }
  size_t share_bytes() const;  // of a piece, when it holds something different for each rank
  std::pair<std::shared_ptr<Slab>, uint64_t> find_symmetric(const void* data, size_t bytes);

  const Segment& segment_;
  const int rank_;
  const std::chrono::milliseconds patience_;
  Meeting meeting_;
  size_t piece_bytes_ = 0;
  uint64_t turn_ = 0;  // which half is in use
  uint64_t allocations_ = 0;
  std::vector<Allocated> allocated_;
};

}  // namespace ddip::comm::shm
