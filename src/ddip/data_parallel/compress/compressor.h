// How a bucket of gradients becomes the mean over all ranks with fewer bytes than it has.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "ddip/tensors/communicator.h"

namespace ddip::data_parallel {

// One gradient of a bucket.
struct Piece {
  size_t parameter;     // its number in the model: stays the same when buckets are cut anew
  at::Tensor gradient;  // a flat view into the bucket
  std::vector<int64_t> shape;
};

struct Outcome {
  size_t bytes = 0;    // this rank has put on the wire
  bool finite = true;  // the same on all ranks
};

class Compressor {
 public:
  virtual ~Compressor() = default;

  // Makes every piece the mean over the ranks. All ranks call it with the same pieces. `flat` holds them all.
  virtual Outcome reduce(tensors::Communicator& ranks, const at::Tensor& flat, std::span<const Piece> pieces) = 0;

  // What was left over for the next step counts only if the step is kept.
  virtual void commit() {}
  virtual void rollback() {}
};

// none, fp16, bf16, int8, topk, powersgd. Null for none. Throws ConfigError for another name.
std::unique_ptr<Compressor> make_compressor(const std::string& name);

}  // namespace ddip::data_parallel
