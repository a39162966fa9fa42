#include "ddip/tensors/worker_thread.h"

#include "ddip/base/quiet_thread.h"

namespace ddip::tensors {

WorkerThread::WorkerThread() {
  thread_ = start_quiet_thread([this] { loop(); });
}

WorkerThread::~WorkerThread() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WorkerThread::post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void WorkerThread::run(const std::function<void()>& task) {
  std::unique_lock lock(mutex_);
  if (busy_ || !tasks_.empty()) {
    bool done = false;
    std::exception_ptr error;
    tasks_.push_back([&] {
      try {
        task();
      } catch (...) {
        error = std::current_exception();
      }
      std::lock_guard inner(mutex_);
      done = true;
      changed_.notify_all();
    });
    changed_.notify_all();
    changed_.wait(lock, [&] { return done; });
    if (error) std::rethrow_exception(error);
    return;
  }
  busy_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    task();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  busy_ = false;
  if (!tasks_.empty() || stopping_) changed_.notify_all();
  if (error) std::rethrow_exception(error);
}

void WorkerThread::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !busy_ && (stopping_ || !tasks_.empty()); });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    busy_ = false;
  }
}

}  // namespace ddip::tensors
