#include "ddip/pipeline/after_stream.h"

#include <sys/prctl.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

namespace ddip::pipeline {
namespace {

// A thread that waits for an event in CUDA keeps a core busy; a message may be this late instead.
constexpr std::chrono::microseconds kBetweenLooks(20);
constexpr unsigned long kTimerSlack = 1000;  // nanoseconds; usually the kernel adds 50 µs to every sleep

}  // namespace

void AfterStream::call(std::function<void()> what) {
  auto event = std::make_shared<c10::Event>(device_.type());
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  thread_.post([this, event, what = std::move(what)] {
    wait_for(*event);
    what();
  });
}

void AfterStream::wait_for(const c10::Event& event) noexcept {
  thread_local const int slack = ::prctl(PR_SET_TIMERSLACK, kTimerSlack);
  (void)slack;
  try {
    c10::DeviceGuard guard(device_);  // a thread's calls make a context on the first GPU otherwise
    while (!event.query()) std::this_thread::sleep_for(kBetweenLooks);
  } catch (...) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void AfterStream::check() {
  std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace ddip::pipeline
