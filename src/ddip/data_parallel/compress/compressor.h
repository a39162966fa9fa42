// How a bucket of gradients becomes the mean over all ranks with fewer bytes than it has. One file per way.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "ddip/tensors/communicator.h"

namespace ddip::data_parallel {

// One gradient of a bucket.
struct Piece {
  size_t parameter;     // its number in the model, until that is planned anew (Compressor::set_kept)
  at::Tensor gradient;  // a flat view into the bucket
  std::vector<int64_t> shape;
};

struct Outcome {
  size_t bytes = 0;    // that this rank has put on the wire
  bool finite = true;  // the same on all ranks
};

// By kind and parameter: what is kept from one step for the next.
using Kept = std::map<std::string, std::map<size_t, at::Tensor>>;

class Compressor {
 public:
  virtual ~Compressor() = default;

  // Makes every piece the mean over the ranks, to what the way can do. All ranks call it with the same pieces. If a
  // value is not finite on any rank, all ranks say so and the pieces hold nothing of use.
  virtual Outcome reduce(tensors::Communicator& ranks, std::span<const Piece> pieces) = 0;

  // What is left over for the next step counts only if the step is kept.
  virtual void commit() {}
  virtual void rollback() {}
  // Nobody used this parameter, so nobody takes what was sent of it in the step under way.
  virtual void rollback(size_t /*parameter*/) {}

  // Between steps: all that it keeps, and something else in place of that. A parameter that is not the one it was must
  // not get what another has left over.
  virtual Kept kept() const { return {}; }
  virtual void set_kept(Kept /*kept*/) {}

  // What is left over for this parameter, for tests and for people; undefined if nothing.
  virtual at::Tensor residual(size_t /*parameter*/) const { return {}; }
};

// "none" (null), "fp16", "bf16", "int8", "topk" (the largest 1%; "topk:0.05" for 5%), "powersgd" (matrices of rank 4;
// "powersgd:2"). Throws ConfigError for anything else.
std::shared_ptr<Compressor> make_compressor(const std::string& text);

std::unique_ptr<Compressor> make_half(at::ScalarType type);
std::unique_ptr<Compressor> make_int8();
std::unique_ptr<Compressor> make_topk(double share);
std::unique_ptr<Compressor> make_power_sgd(int64_t rank);

}  // namespace ddip::data_parallel
