// Calls what is to be called when a GPU has come to where its stream is now. The thread that computes goes on
// meanwhile, and the GPU always has something to do.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "ddip/tensors/torch.h"
#include "ddip/tensors/worker_thread.h"

namespace ddip::pipeline {

class AfterStream {
 public:
  explicit AfterStream(at::Device device) : device_(device) {}

  // On a thread of its own, one after the other, and told whether the GPU came there or failed: others wait for what is
  // called in either case. It must throw nothing.
  void call(std::function<void(bool came)> what);
  // Throws what the GPU failed with.
  void check();

 private:
  bool wait_for(std::unique_ptr<c10::Event> event) noexcept;
  void keep_error();

  const at::Device device_;
  std::mutex mutex_;
  std::exception_ptr error_;
  tensors::WorkerThread thread_;  // the last member: it looks at the others
};

}  // namespace ddip::pipeline
