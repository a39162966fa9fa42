#include "ddip/pipeline/completion.h"

#include <chrono>

#include "ddip/tensors/c10d_backend.h"

namespace ddip::pipeline {
namespace {

// How long an interrupt may go unnoticed. A thread that wakes so rarely costs nothing.
constexpr std::chrono::milliseconds kBetweenPolls(50);

}  // namespace

struct Completion::State {
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;

  void end(std::exception_ptr how) {
    {
      std::lock_guard lock(mutex);
      done = true;
      error = std::move(how);
    }
    changed.notify_all();
  }
};

bool Completion::is_done() const {
  std::lock_guard lock(state_->mutex);
  return state_->done;
}

void Completion::wait(const Poll& poll) const {
  std::unique_lock lock(state_->mutex);
  while (!state_->changed.wait_for(lock, kBetweenPolls, [this] { return state_->done; })) {
    lock.unlock();
    if (poll) poll();
    lock.lock();
  }
  if (state_->error) std::rethrow_exception(state_->error);
}

Completions::Completions(const tensors::Communicator& ranks)
    : futures_(dynamic_cast<tensors::C10dBackend*>(ranks.backend().get()) != nullptr) {
  if (!futures_) waiter_ = std::make_unique<tensors::WorkerThread>();
}

Completion Completions::watch(const tensors::Communicator::Work& work) {
  auto state = std::make_shared<Completion::State>();
  if (futures_) {
    work->getFuture()->addCallback(
        [state](c10::ivalue::Future& future) { state->end(future.hasError() ? future.exception_ptr() : nullptr); });
  } else {
    waiter_->post([work, state] {
      std::exception_ptr error;
      try {
        work->wait();
      } catch (...) {
        error = std::current_exception();
      }
      state->end(error);
    });
  }
  return Completion(state);
}

}  // namespace ddip::pipeline
