// What was saved, by name, for those who take it out again: each tensor once, and as its taker expects it.
#pragma once

#include "ddip/pipeline/gather.h"

namespace ddip::pipeline {

constexpr int64_t kMostSaved = int64_t{1} << 62;  // of whatever is counted: a run that goes on adds to it

class SavedTensors {
 public:
  explicit SavedTensors(NamedTensors tensors) : left_(std::move(tensors)) {}

  bool has(const std::string& name) const { return left_.contains(name); }
  bool has_under(const std::string& prefix) const;  // any whose name begins so

  // On the CPU. Throws ConfigError if it is not there, or of another type or shape.
  at::Tensor take(const std::string& name, at::ScalarType type, at::IntArrayRef sizes);
  at::Tensor take_like(const std::string& name, const at::Tensor& like) {
    return take(name, like.scalar_type(), like.sizes());
  }
  int64_t take_count(const std::string& name);  // from 0 on
  // All whose names begin so, without that beginning.
  NamedTensors take_under(const std::string& prefix);

  // Throws ConfigError that names what nobody took, of those whose names begin so.
  void require_none_under(const std::string& prefix) const;

 private:
  NamedTensors left_;
};

}  // namespace ddip::pipeline
