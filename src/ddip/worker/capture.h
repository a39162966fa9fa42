// What is written to descriptors 1 and 2, cell by cell. Each cell gets pipes of its own, so that what its subprocesses
// print later still belongs to it; between cells another pair is in place.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ddip/base/fd.h"
#include "ddip/net/loop.h"

namespace ddip::worker {

enum class Stream : uint8_t { out = 1, err = 2 };

class Capture {
 public:
  // Called with the bytes read, in order per stream, from whichever thread read them, under our lock.
  using Sink = std::function<void(uint64_t cell, Stream stream, std::string bytes)>;

  // Asked by `loop`'s thread before it reads. While it is true nothing is read there, and writers wait in their pipes.
  using Full = std::function<bool()>;

  // From now on 1 and 2 are pipes that `loop`'s thread reads. C stdio becomes line-buffered.
  Capture(net::Loop& loop, Sink sink, Full full = nullptr);
  // REQUIRES: the loop's thread has ended, or this is it.
  ~Capture();

  // Main thread: 1 and 2 now belong to this cell (0: between cells). What the cell before wrote, through C stdio too,
  // has been read when it returns.
  void switch_to(uint64_t cell);

  // Main thread, when nobody waits for it: pipes for the next cell, and those of the last one closed.
  void prepare();

  // Loop's thread: reads the pipes of the cell that runs now as soon as something is in them. Until then they are read
  // by drain() and at the cell's end only.
  void watch_current();

  // Any thread: reads what lies in this cell's pipe now, so that bytes written before a Python write stay before it.
  void drain(uint64_t cell, Stream stream);
  void drain_current();

 private:
  struct Pipe;
  void read_some(Pipe& pipe);
  void watch(const std::shared_ptr<Pipe>& pipe);
  void leave(Stream stream);
  void on_readable(const std::shared_ptr<Pipe>& pipe);
  std::shared_ptr<Pipe> make_pipe(Stream stream);
  void put_in_place(uint64_t cell, Stream stream);

  net::Loop& loop_;
  Sink sink_;
  Full full_;
  std::mutex mutex_;  // guards all below
  std::map<std::pair<uint64_t, Stream>, std::shared_ptr<Pipe>> pipes_;
  std::map<Stream, std::shared_ptr<Pipe>> spare_;
  std::vector<std::shared_ptr<Pipe>> ended_;  // to be closed
  uint64_t current_ = 0;
  std::string scratch_;
};

}  // namespace ddip::worker
