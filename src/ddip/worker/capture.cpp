#include "ddip/worker/capture.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/worker/crash.h"

namespace ddip::worker {
namespace {

using namespace std::chrono_literals;

// What a pipe holds at most (pipe(7)), so that one read empties it.
constexpr size_t kPipeBytes = 64u << 10;
constexpr auto kPause = 10ms;

}  // namespace

struct Capture::Pipe {
  uint64_t cell = 0;
  Stream stream{};
  Fd read_end;
  Fd write_end;  // ours, besides 1 or 2; the pair between cells keeps it, to be put back in place again and again
  bool ended = false;
  bool watched = false;
  net::Loop::Handle readable;  // touched by the loop's thread only
  net::Loop::Handle paused;    // likewise
};

Capture::Capture(net::Loop& loop, Sink sink, Full full)
    : loop_(loop), sink_(std::move(sink)), full_(std::move(full)), scratch_(kPipeBytes, '\0') {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::setvbuf(stderr, nullptr, _IOLBF, 0);
  std::lock_guard lock(mutex_);
  for (Stream stream : {Stream::out, Stream::err}) put_in_place(0, stream);
  loop_.post([this] { watch_current(); });
}

Capture::~Capture() = default;

std::shared_ptr<Capture::Pipe> Capture::make_pipe(Stream stream) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe for output");
  Fd read_end(ends[0]), write_end(ends[1]);
  auto pipe = std::make_shared<Pipe>();
  pipe->stream = stream;
  // A cell may have closed 1 and 2; at its end they are ours again.
  pipe->read_end = above_standard(std::move(read_end));
  pipe->write_end = above_standard(std::move(write_end));
  ::fcntl(pipe->read_end.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

// Under the lock: a spare pipe, or a new one, is 1 or 2 from now on.
void Capture::put_in_place(uint64_t cell, Stream stream) {
  std::shared_ptr<Pipe> pipe = std::exchange(spare_[stream], nullptr);
  if (!pipe) pipe = make_pipe(stream);
  pipe->cell = cell;
  if (::dup2(pipe->write_end.get(), static_cast<int>(stream)) < 0) throw_errno("dup2 for output");
  pipes_[{cell, stream}] = std::move(pipe);
}

void Capture::prepare() {
  std::vector<std::shared_ptr<Pipe>> ended;
  std::lock_guard lock(mutex_);
  ended.swap(ended_);
  try {
    for (Stream stream : {Stream::out, Stream::err}) {
      if (!spare_[stream]) spare_[stream] = make_pipe(stream);
    }
  } catch (const std::exception&) {
    // The user's code holds every descriptor: the next cell will say so.
  }
}

void Capture::watch_current() {
  std::lock_guard lock(mutex_);
  for (Stream stream : {Stream::out, Stream::err}) {
    if (auto pipe = pipes_.find({current_, stream}); pipe != pipes_.end()) watch(pipe->second);
  }
}

// Loop's thread, under the lock. The pipe is owned by pipes_ alone: its own watch must not keep it, or neither would
// ever go.
void Capture::watch(const std::shared_ptr<Pipe>& pipe) {
  if (std::exchange(pipe->watched, true)) return;
  try {
    pipe->readable = loop_.when_readable(pipe->read_end.get(), [this, weak = std::weak_ptr<Pipe>(pipe)] {
      if (auto known = weak.lock()) on_readable(known);
    });
  } catch (const std::exception&) {
    // The user's code holds every descriptor. The pipe is read all the same whenever Python writes, and at the end.
  }
}

void Capture::on_readable(const std::shared_ptr<Pipe>& pipe) {
  if (full_ && full_()) {
    pipe->readable.cancel();
    pipe->paused = loop_.after(kPause, [this, weak = std::weak_ptr<Pipe>(pipe)] {
      auto known = weak.lock();
      if (!known) return;
      std::lock_guard lock(mutex_);
      known->watched = false;
      watch(known);
    });
    return;
  }
  std::lock_guard lock(mutex_);
  read_some(*pipe);
  if (!pipe->ended) return;
  pipe->readable.cancel();
  pipes_.erase({pipe->cell, pipe->stream});
}

void Capture::switch_to(uint64_t cell) {
  std::fflush(nullptr);
  std::lock_guard lock(mutex_);
  for (Stream stream : {Stream::out, Stream::err}) {
    if (cell != 0)
      put_in_place(cell, stream);
    else if (::dup2(pipes_.at({0, stream})->write_end.get(), static_cast<int>(stream)) < 0)
      throw_errno("dup2 for output");
  }
  last_words_come_from(pipes_.at({cell, Stream::out})->read_end.get(), pipes_.at({cell, Stream::err})->read_end.get());
  for (Stream stream : {Stream::out, Stream::err}) leave(stream);
  current_ = cell;
}

// Under the lock. The pipe of the cell that ran until now is gone when nobody writes to it any more; one that a
// subprocess still holds is watched from now on.
void Capture::leave(Stream stream) {
  auto found = pipes_.find({current_, stream});
  if (current_ == 0 || found == pipes_.end()) return;
  std::shared_ptr<Pipe> pipe = found->second;
  pipe->write_end.reset();  // 1 or 2 is another pipe by now: the end shows when nobody else holds it
  read_some(*pipe);
  if (pipe->watched) return;
  if (!pipe->ended) read_some(*pipe);  // the end comes after the last bytes
  if (pipe->ended) {
    ended_.push_back(std::move(pipe));
    pipes_.erase(found);
    return;
  }
  loop_.post([this, weak = std::weak_ptr<Pipe>(pipe)] {
    auto known = weak.lock();
    if (!known) return;
    std::lock_guard lock(mutex_);
    watch(known);
  });
}

// Under the lock. What lies in the pipe now, without waiting; not until it is empty, for a flood never ends.
void Capture::read_some(Pipe& pipe) {
  if (pipe.ended) return;
  ssize_t count;
  do count = ::read(pipe.read_end.get(), scratch_.data(), scratch_.size());
  while (count < 0 && errno == EINTR);
  if (count > 0) return sink_(pipe.cell, pipe.stream, scratch_.substr(0, static_cast<size_t>(count)));
  if (count == 0 || errno != EAGAIN) pipe.ended = true;  // nobody holds the other end any more
}

void Capture::drain(uint64_t cell, Stream stream) {
  std::lock_guard lock(mutex_);
  auto found = pipes_.find({cell, stream});
  if (found != pipes_.end()) read_some(*found->second);
}

void Capture::drain_current() {
  std::lock_guard lock(mutex_);
  for (Stream stream : {Stream::out, Stream::err}) {
    if (auto found = pipes_.find({current_, stream}); found != pipes_.end()) read_some(*found->second);
  }
}

}  // namespace ddip::worker
