// One thread at a time that owns its state: timers, readable descriptors and messages from other threads, over
// Boost.Asio (which stays inside the .cpp).
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace ddip::net {

class Loop {
 public:
  using Task = std::function<void()>;

  // Cancels its timer or watch when it goes. Only the loop's thread may destroy or reset it.
  class Handle {
   public:
    struct State;
    Handle() = default;
    explicit Handle(std::shared_ptr<State> state) : state_(std::move(state)) {}
    Handle(Handle&& other) noexcept = default;
    Handle& operator=(Handle&& other) noexcept;
    ~Handle();
    void cancel();
    explicit operator bool() const { return state_ != nullptr; }

   private:
    std::shared_ptr<State> state_;  // shared with the pending Asio operation, which outlives us by one turn
  };

  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs tasks until stop(). Only one thread may be inside.
  void run();

  // Likewise until `done`, which is asked after each task, or the deadline.
  void run_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& done);

  // The only two calls that other threads may make.
  void post(Task task);
  void stop();

  [[nodiscard]] Handle after(std::chrono::nanoseconds delay, Task task);

  // Calls task each time fd is readable (writable) until the handle goes. The descriptor stays the caller's; the loop
  // watches a duplicate, so closing the original is safe.
  [[nodiscard]] Handle when_readable(int fd, Task task);
  [[nodiscard]] Handle when_writable(int fd, Task task);

 private:
  struct Core;
  std::unique_ptr<Core> core_;
};

}  // namespace ddip::net
