#include "ddip/worker/handover.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

#include "ddip/base/error.h"
#include "ddip/base/quiet_thread.h"

namespace ddip::worker {
namespace {

using namespace std::chrono_literals;

constexpr auto kMoment = 1ms;

}  // namespace

Handover::Handover(net::Loop& loop, std::function<void()> on_taken)
    : loop_(loop), on_taken_(std::move(on_taken)), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
  if (!timer_) throw_errno("timer");
  set_timer(1ns);
  thread_ = start_quiet_thread([this] { run(); });
}

Handover::~Handover() {
  take_back();
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  set_timer(1ns);
  thread_.join();
}

void Handover::run() {
  for (;;) {
    uint64_t expirations;
    if (::read(timer_.get(), &expirations, sizeof expirations) < 0 && errno != EINTR) return;
    std::unique_lock lock(mutex_);
    if (ended_) return;
    if (main_turns_) continue;  // it came back just now
    second_turns_ = true;
    lock.unlock();
    on_taken_();
    loop_.run();
    lock.lock();
    second_turns_ = false;
    changed_.notify_all();
  }
}

void Handover::take_back() {
  set_timer(0ns);
  std::unique_lock lock(mutex_);
  main_turns_ = true;
  if (!second_turns_) return;
  // Posted, not stopped from here: a loop that has not quite begun to run would forget it.
  loop_.post([this] { loop_.stop(); });
  changed_.wait(lock, [this] { return !second_turns_; });
}

void Handover::turn_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& done) {
  take_back();
  loop_.run_until(deadline, done);
  {
    std::lock_guard lock(mutex_);
    main_turns_ = false;
  }
  set_timer(kMoment);
}

bool Handover::taken() const {
  std::lock_guard lock(mutex_);
  return second_turns_;
}

void Handover::set_timer(std::chrono::nanoseconds delay) {
  itimerspec when{{0, 0}, {0, static_cast<long>(delay.count())}};
  ::timerfd_settime(timer_.get(), 0, &when, nullptr);
}

}  // namespace ddip::worker
