// Runs the operations of one communicator one after the other, in the order in which they were asked for.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ddip::tensors {

class WorkerThread {
 public:
  WorkerThread();
  // Runs what is left first.
  ~WorkerThread();

  void post(std::function<void()> task);
  // On the calling thread if nothing is before it, which saves two switches; otherwise like post, and waits. What the
  // task throws comes out here; a posted one must throw nothing.
  void run(const std::function<void()>& task);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false;  // somebody runs one
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ddip::tensors
