// Which gradients travel together, and where each lies. Pure: the same input gives the same plan on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddip::data_parallel {

struct Gradient {
  size_t elements = 0;
  size_t element_bytes = 4;
  int kind = 0;  // gradients of one kind (type and device) may share a bucket
};

struct Bucket {
  int kind = 0;
  size_t begin = 0;     // in the memory of its kind, in elements
  size_t elements = 0;  // with the gaps between its members
  std::vector<size_t> members;
};

struct BucketPlan {
  std::vector<Bucket> buckets;    // in the order in which they become complete
  std::vector<size_t> bucket_of;  // by gradient
  std::vector<size_t> begin;      // by gradient: in the memory of its kind, in elements
  std::vector<size_t> total;      // by kind: elements in all
};

struct BucketSizes {
  size_t first_bytes = size_t{1} << 20;  // small, so that something travels early
  size_t bytes = size_t{25} << 20;
};

// `order`: in which the gradients become ready, each once. The first `used` of them were used together, the others not:
// no bucket holds some of both.
BucketPlan plan_buckets(std::span<const Gradient> gradients, std::span<const size_t> order, const BucketSizes& sizes,
                        size_t used = SIZE_MAX);

}  // namespace ddip::data_parallel
