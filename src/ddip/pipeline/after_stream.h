// Calls what is to be called when a GPU has come to where its stream is now. The thread that computes goes on
// meanwhile, and the GPU always has something to do.
#pragma once

#include <exception>
#include <functional>
#include <mutex>

#include "ddip/tensors/torch.h"
#include "ddip/tensors/worker_thread.h"

namespace ddip::pipeline {

class AfterStream {
 public:
  explicit AfterStream(at::Device device) : device_(device) {}

  // On a thread of its own, one after the other, also where the GPU has failed: others wait for what is called. It must
  // throw nothing.
  void call(std::function<void()> what);
  // Throws what the GPU failed with.
  void check();

 private:
  void wait_for(const c10::Event& event) noexcept;

  const at::Device device_;
  std::mutex mutex_;
  std::exception_ptr error_;
  tensors::WorkerThread thread_;  // the last member: it looks at the others
};

}  // namespace ddip::pipeline
