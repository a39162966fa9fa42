#include "ddip/pipeline/after_stream.h"

#include <sys/prctl.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "ddip/tensors/cuda_runtime.h"

namespace ddip::pipeline {
namespace {

// A thread that waits for an event in CUDA keeps a core busy; a message may be this late instead.
constexpr std::chrono::microseconds kBetweenLooks(20);
constexpr unsigned long kTimerSlack = 1000;  // nanoseconds; usually the kernel adds 50 µs to every sleep

bool prepare_thread() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlack);
  tensors::CudaRuntime::get().leave_captures_alone();
  return true;
}

}  // namespace

void AfterStream::call(std::function<void(bool came)> what) {
  auto event = std::make_unique<c10::Event>(device_.type());
  try {
    event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  } catch (...) {
    keep_error();
    event.reset();
  }
  // In a pointer that is shared, because a function has to be one that can be copied.
  thread_.post([this, held = std::make_shared<std::unique_ptr<c10::Event>>(std::move(event)), what = std::move(what)] {
    what(wait_for(std::move(*held)));
  });
}

bool AfterStream::wait_for(std::unique_ptr<c10::Event> event) noexcept {
  if (!event) return false;
  try {
    // Also while the event goes: a call on a thread that never chose a GPU would make a context on the first one.
    c10::DeviceGuard guard(device_);
    static thread_local const bool prepared = prepare_thread();
    (void)prepared;
    while (!event->query()) std::this_thread::sleep_for(kBetweenLooks);
    event.reset();
    return true;
  } catch (...) {
    keep_error();
    return false;
  }
}

void AfterStream::keep_error() {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::current_exception();
}

void AfterStream::check() {
  std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace ddip::pipeline
