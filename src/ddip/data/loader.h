// Batches of events, read ahead by threads and handed out in the sampler's order.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ddip/data/event_set.h"
#include "ddip/data/sampler.h"

namespace ddip::data {

struct LoaderOptions {
  SamplerOptions sampling;  // `samples` is the set's own
  int threads = 2;
  int ahead = 4;      // batches that are read before they are asked for
  int classes = 256;  // a label that is not below it is an error, as is a value that is not finite
};

struct Batch {
  std::vector<uint64_t> samples;
  std::unique_ptr<float[]> images;    // samples × channels × height × width
  std::unique_ptr<uint8_t[]> labels;  // samples × height × width
};

class Loader {
 public:
  // Throws ConfigError for options that make no sense.
  Loader(std::shared_ptr<const EventSet> events, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Forgets what was read ahead. `done`: see Sampler.
  void begin_epoch(uint64_t epoch, const Ledger& done = {});

  // Nothing when the epoch has ended for this rank. Throws what reading threw: ConfigError for a bad event.
  std::optional<Batch> next();

  // Samples of this epoch that next() has not given yet.
  uint64_t remaining() const;
  const EventShape& shape() const { return events_->shape(); }

 private:
  struct Slot {
    Batch batch;
    enum class State { waiting, reading, done } state = State::waiting;
    std::exception_ptr error;
  };

  void draw(const std::unique_lock<std::mutex>&);
  void read_batches();
  void read(Batch& batch) const;

  const std::shared_ptr<const EventSet> events_;
  const LoaderOptions options_;
  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  Sampler sampler_;
  std::deque<std::shared_ptr<Slot>> slots_;  // in the order of next(); shared with the thread that reads one
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ddip::data
