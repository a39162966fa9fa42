#include "ddip/net/loop.h"

#include <fcntl.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>

#include "ddip/base/error.h"

namespace ddip::net {

namespace asio = boost::asio;

struct Loop::Core {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{io.get_executor()};
};

// A timer or a watched descriptor; alive as long as its handle or a pending operation.
struct Loop::Handle::State {
  std::optional<asio::steady_timer> timer;
  std::optional<asio::posix::stream_descriptor> descriptor;
  asio::posix::stream_descriptor::wait_type direction{};
  Task task;
  bool cancelled = false;
};

namespace {

void wait_again(const std::shared_ptr<Loop::Handle::State>& state) {
  state->descriptor->async_wait(state->direction, [state](const boost::system::error_code& error) {
    if (state->cancelled || error) return;
    state->task();
    if (!state->cancelled) wait_again(state);
  });
}

std::shared_ptr<Loop::Handle::State> watch(asio::io_context& io, int fd,
                                           asio::posix::stream_descriptor::wait_type direction, Loop::Task task) {
  int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw_errno("watch descriptor");
  auto state = std::make_shared<Loop::Handle::State>();
  state->descriptor.emplace(io, copy);
  state->direction = direction;
  state->task = std::move(task);
  wait_again(state);
  return state;
}

}  // namespace

Loop::Handle& Loop::Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    cancel();
    state_ = std::move(other.state_);
  }
  return *this;
}

Loop::Handle::~Handle() { cancel(); }

void Loop::Handle::cancel() {
  if (!state_) return;
  auto state = std::move(state_);
  state->cancelled = true;
  boost::system::error_code ignored;
  if (state->timer) state->timer->cancel(ignored);
  if (state->descriptor) state->descriptor->close(ignored);
  // The task may be running right now and own this handle, so its captures are freed only after it returns.
}

Loop::Loop() : core_(std::make_unique<Core>()) {}
Loop::~Loop() = default;

void Loop::run() {
  core_->io.restart();
  core_->io.run();
}

void Loop::run_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& done) {
  core_->io.restart();
  while (!done() && std::chrono::steady_clock::now() < deadline) core_->io.run_one_until(deadline);
}

void Loop::post(Task task) { asio::post(core_->io, std::move(task)); }

void Loop::stop() { core_->io.stop(); }

Loop::Handle Loop::after(std::chrono::nanoseconds delay, Task task) {
  auto state = std::make_shared<Handle::State>();
  state->timer.emplace(core_->io, delay);
  state->task = std::move(task);
  state->timer->async_wait([state](const boost::system::error_code& error) {
    if (!state->cancelled && !error) state->task();
  });
  return Handle(std::move(state));
}

Loop::Handle Loop::when_readable(int fd, Task task) {
  return Handle(watch(core_->io, fd, asio::posix::stream_descriptor::wait_read, std::move(task)));
}

Loop::Handle Loop::when_writable(int fd, Task task) {
  return Handle(watch(core_->io, fd, asio::posix::stream_descriptor::wait_write, std::move(task)));
}

}  // namespace ddip::net
