// What a step could not send is added to the next one: by parameter, so that it outlives buckets that are cut anew, and
// kept only if the step is.
#pragma once

#include <map>

#include "ddip/data_parallel/compress/compressor.h"

namespace ddip::data_parallel {

class Residuals {
 public:
  // The gradient with what was left of it before, as float32 and a copy.
  at::Tensor with_rest(const Piece& piece) const;
  void keep(size_t parameter, at::Tensor rest) { pending_[parameter] = std::move(rest); }
  // Of the step under way.
  at::Tensor& pending(size_t parameter) { return pending_.at(parameter); }

  void commit();
  void rollback() { pending_.clear(); }
  void rollback(size_t parameter) { pending_.erase(parameter); }
  at::Tensor of(size_t parameter) const;

  static constexpr const char* kKind = "rest";  // in Kept
  const std::map<size_t, at::Tensor>& kept() const { return kept_; }
  void set_kept(std::map<size_t, at::Tensor> kept) {
    kept_ = std::move(kept);
    pending_.clear();
  }

 private:
  std::map<size_t, at::Tensor> kept_;
  std::map<size_t, at::Tensor> pending_;
};

// Whether all are finite, with one look at the memory.
bool all_finite(const at::Tensor& tensor);

}  // namespace ddip::data_parallel
