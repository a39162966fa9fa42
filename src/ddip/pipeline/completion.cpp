#include "ddip/pipeline/completion.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>

#include "ddip/base/error.h"
#include "ddip/tensors/c10d_backend.h"

namespace ddip::pipeline {
namespace {

// How long an interrupt may go unnoticed. A thread that wakes so rarely costs nothing.
constexpr std::chrono::milliseconds kBetweenPolls(50);
// Who waits for a message does so no longer than this, whatever the backend thinks.
constexpr std::chrono::minutes kPatience(30);
// A receive may be posted long before its message: as a thread's wait for it, that is no failure. (Gloo gives up all
// its connections when one wait is over.)
constexpr std::chrono::hours kForever(24 * 365);

// Who waits for one of several is told of each that ends, in this process.
struct Arrivals {
  std::atomic<int> waiting{0};
  std::mutex mutex;
  std::condition_variable one_ended;

  static Arrivals& get() {
    static auto* arrivals = new Arrivals;  // threads may outlive what is destroyed at the end
    return *arrivals;
  }
  void tell() {
    if (waiting == 0) return;
    // Whoever looked before this one ended has the lock until it sleeps.
    std::lock_guard lock(mutex);
    one_ended.notify_all();
  }
};

}  // namespace

struct Completion::State {
  explicit State(tensors::C10dBackend* backend) : helps(backend) {}

  tensors::C10dBackend* const helps;  // null: nobody can help it
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
    Arrivals::get().tell();
  }
};

bool Completion::is_done() const {
  std::lock_guard lock(state_->mutex);
  return state_->done;
}

bool Completion::has_come() const {
  bool looked = false;
  if (state_->helps) state_->helps->help([&] { return is_done() || std::exchange(looked, true); });
  return is_done();
}

void Completion::wait(const Poll& poll) const {
  // It costs a moment to be woken by another thread, and more if the core has gone to sleep.
  if (state_->helps) state_->helps->help([this] { return is_done(); });
  std::unique_lock lock(state_->mutex);
  const auto begun = std::chrono::steady_clock::now();
  while (!state_->changed.wait_for(lock, kBetweenPolls, [this] { return state_->done; })) {
    lock.unlock();
    if (std::chrono::steady_clock::now() - begun > kPatience)
      throw TimedOut("a pipeline's message did not come within 30 minutes");
    if (poll) poll();
    lock.lock();
  }
  if (state_->error) std::rethrow_exception(state_->error);
}

void wait_for_any(const std::vector<Completion>& some, const Poll& poll) {
  auto any = [&] { return std::ranges::any_of(some, &Completion::is_done); };
  if (tensors::C10dBackend* helps = some.at(0).state_->helps) helps->help(any);
  Arrivals& arrivals = Arrivals::get();
  ++arrivals.waiting;
  const std::shared_ptr<void> leaving(nullptr, [&](void*) { --arrivals.waiting; });
  const auto begun = std::chrono::steady_clock::now();
  std::unique_lock lock(arrivals.mutex);
  while (!arrivals.one_ended.wait_for(lock, kBetweenPolls, any)) {
    lock.unlock();
    if (std::chrono::steady_clock::now() - begun > kPatience)
      throw TimedOut("none of a pipeline's messages came within 30 minutes");
    if (poll) poll();
    lock.lock();
  }
}

namespace {

bool aborted(c10d::Work& work) {
  try {
    work.abort();
    return true;
  } catch (const std::exception&) {  // not every backend can
    return false;
  }
}

}  // namespace

struct Completions::UnderWay {
  std::mutex mutex;
  std::list<tensors::Communicator::Work> works;
};

Completions::Completions(const tensors::Communicator& ranks, AtTheEnd at_the_end)
    : backend_(ranks.backend()),
      ours_(dynamic_cast<tensors::C10dBackend*>(backend_.get())),
      at_the_end_(at_the_end),
      under_way_(std::make_shared<UnderWay>()) {
  if (!ours_) waiter_ = std::make_unique<tensors::WorkerThread>();
}

Completions::~Completions() {
  if (!waiter_) return;
  bool left = false;
  {
    std::lock_guard lock(under_way_->mutex);
    for (const auto& work : under_way_->works) left |= at_the_end_ == AtTheEnd::leave || !aborted(*work);
  }
  if (left) (void)waiter_.release();  // NOLINT(bugprone-unused-return-value): for as long as the process lives
}

Completion Completions::watch(const tensors::Communicator::Work& work) {
  auto state = std::make_shared<Completion::State>(ours_);
  tell(work, state);
  return Completion(state);
}

Completion Completions::watch_after(AfterStream& stream, std::function<tensors::Communicator::Work(bool came)> start) {
  auto state = std::make_shared<Completion::State>(ours_);
  stream.call([this, state, start = std::move(start)](bool came) {
    try {
      tell(start(came), state);
    } catch (...) {
      state->end(std::current_exception());
    }
  });
  return Completion(state);
}

void Completions::tell(const tensors::Communicator::Work& work, const std::shared_ptr<Completion::State>& state) {
  if (ours_) {
    work->getFuture()->addCallback(
        [state](c10::ivalue::Future& future) { state->end(future.hasError() ? future.exception_ptr() : nullptr); });
    return;
  }
  std::lock_guard lock(under_way_->mutex);
  auto place = under_way_->works.insert(under_way_->works.end(), work);
  waiter_->post([work, place, under_way = under_way_, state] {
    std::exception_ptr error;
    try {
      work->wait(kForever);
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::lock_guard done(under_way->mutex);
      under_way->works.erase(place);
    }
    state->end(error);
  });
}

}  // namespace ddip::pipeline
