// Collective operations over a segment. Results are the same bits on every rank: each element is reduced once, in the
// order of the ranks.
//
// Data goes through the arenas in pieces. Each piece is put into one half of the own arena, everybody meets, each takes
// what it needs from the others' halves; the next piece goes into the other half, so that one meeting per piece is
// enough: who comes to the next meeting has taken what was in this one.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ddip/comm/collectives.h"
#include "ddip/comm/shm/mail.h"
#include "ddip/comm/shm/meeting.h"
#include "ddip/comm/shm/slab.h"

namespace ddip::comm::shm {

class Collectives : public comm::Collectives {
 public:
  Collectives(const Segment& segment, int rank, std::chrono::milliseconds patience);

  void barrier() override;
  void all_reduce(void* data, size_t count, const Typed& typed) override;
  void reduce(void* data, size_t count, const Typed& typed, int root) override;
  void broadcast(void* data, size_t bytes, int root) override;
  void all_gather(const void* mine, void* all, size_t bytes) override;
  void gather(const void* mine, void* all, size_t bytes, int root) override;
  void scatter(const void* all, void* mine, size_t bytes, int root) override;
  void reduce_scatter(const void* all, void* mine, size_t count, const Typed& typed) override;
  void all_to_all(const void* out, std::span<const Part> to, void* in, std::span<const Part> from) override;
  // all_reduce on it reads the peers' directly.
  std::shared_ptr<std::byte> allocate(size_t bytes) override;

  // For data that does not lie in the segment (on a GPU): all ranks meet, and agree on what they do; then meet again.
  void meet(const Operation& operation) { meeting_.begin(operation); }
  void meet_again() { meeting_.again(); }

  // Through a part of the arena of their own.
  std::unique_ptr<comm::Mail> open_mail() override;

  void set_patience(std::chrono::milliseconds patience) override {
    patience_ = patience;
    meeting_.set_patience(patience);
  }

  int rank() const override { return rank_; }
  int world() const override { return segment_.world(); }
  Capabilities capabilities() const override;
  std::string describe() const override { return meeting_.describe(); }
  bool is_waiting() const override { return meeting_.is_waiting(); }
  std::vector<double> waited() const override { return meeting_.waited(); }

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
  // For each piece of `bytes` in all: put, meet, take.
  void in_pieces(const Operation& operation, size_t bytes, size_t piece, const Step& put, const Step& take);
  void reduce_halves(const Typed& typed, size_t offset, void* out, size_t count) const;
  void all_reduce_symmetric(const Slab& slab, const Operation& operation, void* data, size_t count, const Typed& typed);
  size_t rings_begin() const { return 4 * piece_bytes_; }
  size_t share_bytes() const;  // of a piece, when it holds something different for each rank
  std::pair<std::shared_ptr<Slab>, uint64_t> find_symmetric(const void* data, size_t bytes);

  const Segment& segment_;
  const int rank_;
  std::chrono::milliseconds patience_;
  Meeting meeting_;
  size_t piece_bytes_ = 0;
  size_t ring_bytes_ = 0;
  uint64_t turn_ = 0;  // which half is in use
  uint64_t allocations_ = 0;
  std::vector<Allocated> allocated_;
};

}  // namespace ddip::comm::shm
