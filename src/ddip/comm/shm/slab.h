// Memory that lies at the same place for every rank: a part for each to write in, and a slot for each to reduce into. A
// file of its own, so that it goes when the last rank that holds it lets go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ddip/base/fd.h"

namespace ddip::comm::shm {

class Slab {
 public:
  // How the others find what one rank made.
  struct Offer {
    int32_t pid = 0;
    int32_t file = -1;
  };

  static Slab create(int world, size_t bytes);
  static Slab open(const Offer& offer, int world, size_t bytes);
  Slab(Slab&& other) noexcept;
  Slab& operator=(Slab&&) = delete;
  ~Slab();

  Offer offer() const;
  void close_file() { file_.reset(); }

  std::byte* part(int rank) const { return memory_ + static_cast<size_t>(rank) * stride_; }
  std::byte* slot(int rank) const { return part(rank) + part_bytes_; }
  size_t bytes() const { return part_bytes_; }

 private:
  Slab(Fd file, int world, size_t bytes);

  Fd file_;
  size_t part_bytes_;
  size_t stride_;
  size_t total_;
  std::byte* memory_ = nullptr;
};

}  // namespace ddip::comm::shm
