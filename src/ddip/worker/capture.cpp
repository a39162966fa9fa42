#include "ddip/worker/capture.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "ddip/base/error.h"
#include "ddip/worker/crash.h"

namespace ddip::worker {

struct Capture::Pipe {
  uint64_t cell = 0;
  Stream stream{};
  Fd read_end;
  Fd write_end;  // kept only by the pair between cells, which is put back in place again and again
  bool ended = false;
  net::Loop::Handle readable;  // touched by the loop's thread only
};

Capture::Capture(net::Loop& loop, Sink sink) : loop_(loop), sink_(std::move(sink)), scratch_(64u << 10, '\0') {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::setvbuf(stderr, nullptr, _IOLBF, 0);
  std::lock_guard lock(mutex_);
  for (Stream stream : {Stream::out, Stream::err}) {
    auto pipe = make_pipe(0, stream, static_cast<int>(stream));
    watch(pipe);
  }
}

Capture::~Capture() = default;

std::shared_ptr<Capture::Pipe> Capture::make_pipe(uint64_t cell, Stream stream, int target) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe for output");
  auto pipe = std::make_shared<Pipe>();
  pipe->cell = cell;
  pipe->stream = stream;
  pipe->read_end.reset(ends[0]);
  Fd write_end(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  if (::dup2(write_end.get(), target) < 0) throw_errno("dup2 for output");
  if (cell == 0) pipe->write_end = std::move(write_end);
  pipes_[{cell, stream}] = pipe;
  return pipe;
}

void Capture::watch(const std::shared_ptr<Pipe>& pipe) {
  loop_.post([this, pipe] {
    pipe->readable = loop_.when_readable(pipe->read_end.get(), [this, pipe] {
      std::lock_guard lock(mutex_);
      read_all(*pipe);
      if (!pipe->ended) return;
      pipe->readable.cancel();
      pipes_.erase({pipe->cell, pipe->stream});
    });
  });
}

void Capture::switch_to(uint64_t cell) {
  std::lock_guard lock(mutex_);
  for (Stream stream : {Stream::out, Stream::err}) {
    if (cell != 0) watch(make_pipe(cell, stream, static_cast<int>(stream)));
    else if (::dup2(pipes_.at({0, stream})->write_end.get(), static_cast<int>(stream)) < 0) throw_errno("dup2 for output");
  }
  last_words_come_from(pipes_.at({cell, Stream::out})->read_end.get(), pipes_.at({cell, Stream::err})->read_end.get());
}

// Under the lock. Empties the pipe without waiting.
void Capture::read_all(Pipe& pipe) {
  while (!pipe.ended) {
    ssize_t count = ::read(pipe.read_end.get(), scratch_.data(), scratch_.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      pipe.ended = true;  // nobody holds the other end any more
      return;
    }
    sink_(pipe.cell, pipe.stream, scratch_.substr(0, static_cast<size_t>(count)));
    if (static_cast<size_t>(count) < scratch_.size()) return;
  }
}

void Capture::drain(uint64_t cell, Stream stream) {
  std::lock_guard lock(mutex_);
  auto found = pipes_.find({cell, stream});
  if (found != pipes_.end()) read_all(*found->second);
}

void Capture::flush(uint64_t cell) {
  std::fflush(nullptr);
  drain(cell, Stream::out);
  drain(cell, Stream::err);
}

}  // namespace ddip::worker
