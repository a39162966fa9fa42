#include "ddip/mpi/process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/base/quiet_thread.h"

namespace ddip::mpi {
namespace {

using namespace std::chrono_literals;

// How long an operation is looked at without a pause, then how often, and how many times in a row: pieces of a large
// one may each need a look.
constexpr auto kEager = 2ms;
constexpr auto kPause = 100us;
constexpr int kLooks = 64;
// What was begun and never waited for, at exit.
constexpr auto kLastPatience = 5s;

std::string words_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

}  // namespace

void check(int code, const char* what) {
  if (code != MPI_SUCCESS) throw ConfigError(fmt::format("backend mpi: {}: {}", what, words_of(code)));
}

Process& Process::instance() {
  // Never destroyed: it ends with the process, after whatever else may still use it.
  static auto* const process = new Process;
  return *process;
}

Process::Process() : process_(getpid()) {
  thread_ = start_quiet_thread([this] { loop(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ready_; });
  if (failed_) {
    lock.unlock();
    thread_.join();
    std::rethrow_exception(failed_);
  }
  // The status decides how MPI is left, and only this tells it.
  on_exit([](int status, void* self) { static_cast<Process*>(self)->end(status); }, this);
}

void Process::initialise() {
  int there = 0, level = MPI_THREAD_SINGLE;
  check(MPI_Initialized(&there), "MPI_Initialized");
  if (there) {
    check(MPI_Query_thread(&level), "MPI_Query_thread");
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    initialised_here_ = true;
  }
  // The program may make calls of its own beside ours (mpi4py).
  if (level != MPI_THREAD_MULTIPLE)
    throw ConfigError(
        fmt::format("backend mpi: MPI was initialised with thread level {}, MPI_THREAD_MULTIPLE ({}) was expected",
                    level, MPI_THREAD_MULTIPLE));
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &world_);
}

void Process::start(Begin begin, std::chrono::milliseconds patience, std::string what, Done done, bool receive) {
  Pending pending{std::move(begin), std::move(what), patience, std::move(done), receive, Clock::now() + patience};
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(pending));
  }
  changed_.notify_all();
}

void Process::run(const Begin& begin, std::chrono::milliseconds patience, const std::string& what) {
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  std::exception_ptr error;
  start(begin, patience, what, [&](std::exception_ptr found, const MPI_Status&) {
    std::lock_guard lock(mutex);
    error = std::move(found);
    over = true;
    ended.notify_all();
  });
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return over; });
  if (error) std::rethrow_exception(error);
}

void Process::call(const std::function<void()>& body) {
  run([&](MPI_Request&) { body(); }, 1h, "a call");
}

void Process::loop() {
  std::exception_ptr error;
  try {
    initialise();
  } catch (...) {
    error = std::current_exception();
  }
  {
    std::lock_guard lock(mutex_);
    ready_ = true;
    failed_ = error;
  }
  changed_.notify_all();
  if (error) return;
  auto busy_until = Clock::now();
  for (;;) {
    std::deque<Pending> posted;
    {
      std::unique_lock lock(mutex_);
      if (pending_.empty()) changed_.wait(lock, [this] { return stopping_ || !posted_.empty(); });
      if (stopping_ && posted_.empty()) break;
      posted.swap(posted_);
    }
    if (!posted.empty()) busy_until = Clock::now() + kEager;
    for (Pending& one : posted) begin(std::move(one));
    bool some = false;
    for (int looks = 0; looks < kLooks && !pending_.empty(); ++looks) some |= look();
    if (some || pending_.empty()) continue;
    if (Clock::now() < busy_until) {
      std::this_thread::yield();
    } else {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kPause, [this] { return stopping_ || !posted_.empty(); });
    }
  }
  // Nobody waits for what was to be received any more.
  for (auto one = pending_.begin(); one != pending_.end() && !broken_;) {
    MPI_Status status{};
    if (one->receive) take_back(*one, status);
    one = one->receive ? pending_.erase(one) : std::next(one);
  }
  auto deadline = Clock::now() + kLastPatience;
  while (status_ == 0 && !pending_.empty() && !broken_ && Clock::now() < deadline) look();
  int gone = 0;
  MPI_Finalized(&gone);
  if (gone || !initialised_here_) return;
  if (status_ == 0 && pending_.empty() && !broken_)
    MPI_Finalize();
  else
    MPI_Abort(MPI_COMM_WORLD, status_ == 0 ? 1 : status_);
}

void Process::begin(Pending pending) {
  std::exception_ptr error = broken_;
  try {
    if (!error) pending.begin(pending.request);
  } catch (...) {
    error = std::current_exception();
  }
  if (error || pending.request == MPI_REQUEST_NULL)
    pending.done(error, MPI_Status{});
  else
    pending_.push_back(std::move(pending));
}

bool Process::look() {
  bool some = false;
  for (auto one = pending_.begin(); one != pending_.end();) {
    int over = 0;
    MPI_Status status{};
    int code = MPI_Test(&one->request, &over, &status);
    if (code == MPI_SUCCESS && !over) {
      if (Clock::now() < one->deadline) {
        ++one;
        continue;
      }
      if (!one->receive) {
        give_up(*one);
        return true;
      }
      Pending late = std::move(*one);
      one = pending_.erase(one);
      late.done(take_back(late, status) ? nullptr
                                        : std::make_exception_ptr(TimedOut(fmt::format(
                                              "rank {} met its timeout of {} s in {}", rank_,
                                              static_cast<double>(late.patience.count()) / 1000, late.what))),
                status);
      some = true;
      continue;
    }
    std::exception_ptr error;
    if (code != MPI_SUCCESS)
      error = std::make_exception_ptr(ConfigError(fmt::format("backend mpi: {}: {}", one->what, words_of(code))));
    Pending ended = std::move(*one);
    one = pending_.erase(one);
    ended.done(error, status);
    some = true;
  }
  return some;
}

bool Process::take_back(Pending& late, MPI_Status& status) {
  int cancelled = 0;
  MPI_Cancel(&late.request);
  MPI_Wait(&late.request, &status);
  MPI_Test_cancelled(&status, &cancelled);
  return cancelled == 0;
}

void Process::give_up(const Pending& late) {
  broken_ = std::make_exception_ptr(
      TimedOut(fmt::format("rank {} met its timeout of {} s in {}; MPI has no way back, so this process makes no more "
                           "calls of it and ends the job when it ends",
                           rank_, static_cast<double>(late.patience.count()) / 1000, late.what)));
  for (Pending& one : std::exchange(pending_, {})) one.done(broken_, MPI_Status{});
}

void Process::end(int status) {
  if (getpid() != process_) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    status_ = status;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace ddip::mpi
