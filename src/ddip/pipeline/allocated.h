// What this thread has allocated since then, and not yet freed: bytes of tensors, on CPU and GPU.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace ddip::pipeline {

class Allocated {
 public:
  // Throws ConfigError while torch's profiler is on, which counts in the same place.
  Allocated();
  uint64_t bytes() const;

 private:
  class Count;
  static std::shared_ptr<Count> only_count();
  std::shared_ptr<Count> count_;
  c10::DebugInfoGuard guard_;  // counts as long as it lives
};

}  // namespace ddip::pipeline
