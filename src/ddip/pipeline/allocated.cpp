#include "ddip/pipeline/allocated.h"

#include <c10/core/Allocator.h>

#include <map>
#include <mutex>

#include "ddip/base/error.h"

namespace ddip::pipeline {

// As torch's own profiler hears of memory. A backward takes it along to the threads of the engine.
class Allocated::Count : public c10::MemoryReportingInfoBase {
 public:
  bool memoryProfilingEnabled() const override { return true; }

  void reportMemoryUsage(void* place, int64_t size, size_t, size_t, c10::Device) override {
    const std::lock_guard lock(mutex_);
    if (size > 0)
      sizes_[place] = static_cast<uint64_t>(size);
    else
      sizes_.erase(place);  // what was there before does not count
  }

  uint64_t bytes() const {
    const std::lock_guard lock(mutex_);
    uint64_t sum = 0;
    for (const auto& [place, size] : sizes_) sum += size;
    return sum;
  }

 private:
  mutable std::mutex mutex_;
  std::map<void*, uint64_t> sizes_;
};

// torch's profiler takes whatever is there for its own.
std::shared_ptr<Allocated::Count> Allocated::only_count() {
  if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE))
    throw ConfigError("what a forward keeps cannot be counted while torch's profiler counts; expected it to be off");
  return std::make_shared<Count>();
}

Allocated::Allocated() : count_(only_count()), guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}

uint64_t Allocated::bytes() const { return count_->bytes(); }

}  // namespace ddip::pipeline
