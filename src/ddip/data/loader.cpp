#include "ddip/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ddip/base/error.h"
#include "ddip/base/quiet_thread.h"

namespace ddip::data {
namespace {

LoaderOptions checked(LoaderOptions options, const EventShape& shape) {
  if (options.threads < 1 || options.threads > 256) throw ConfigError("a loader needs 1 to 256 threads");
  if (options.ahead < 1 || options.ahead > 10'000) throw ConfigError("a loader reads 1 to 10000 batches ahead");
  options.sampling.samples = shape.events;
  return options;
}

}  // namespace

Loader::Loader(std::shared_ptr<const EventSet> events, const LoaderOptions& options)
    : events_(std::move(events)), options_(checked(options, events_->shape())), sampler_(options_.sampling) {
  for (int index = 0; index < options_.threads; ++index)
    threads_.push_back(start_quiet_thread([this] { read_batches(); }));
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Loader::begin_epoch(uint64_t epoch, const Ledger& done) {
  std::unique_lock lock(mutex_);
  slots_.clear();
  sampler_.begin_epoch(epoch, done);
  draw(lock);
}

std::optional<Batch> Loader::next() {
  std::unique_lock lock(mutex_);
  draw(lock);
  if (slots_.empty()) return std::nullopt;
  const std::shared_ptr<Slot> slot = slots_.front();
  changed_.wait(lock, [&] { return slot->state == Slot::State::done; });
  slots_.pop_front();
  draw(lock);
  if (slot->error) std::rethrow_exception(slot->error);
  return std::move(slot->batch);
}

uint64_t Loader::remaining() const {
  const std::lock_guard lock(mutex_);
  uint64_t samples = sampler_.remaining();
  for (const auto& slot : slots_) samples += slot->batch.samples.size();
  return samples;
}

void Loader::draw(const std::unique_lock<std::mutex>&) {
  while (slots_.size() < static_cast<size_t>(options_.ahead) && sampler_.remaining() > 0) {
    auto slot = std::make_shared<Slot>();
    slot->batch.samples = sampler_.next();
    slots_.push_back(std::move(slot));
  }
  changed_.notify_all();
}

void Loader::read_batches() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::shared_ptr<Slot> slot;
    changed_.wait(lock, [&] {
      const auto found =
          std::find_if(slots_.begin(), slots_.end(), [](auto& one) { return one->state == Slot::State::waiting; });
      if (found != slots_.end()) slot = *found;
      return ends_ || slot != nullptr;
    });
    if (ends_) return;
    slot->state = Slot::State::reading;
    lock.unlock();
    try {
      read(slot->batch);
    } catch (...) {
      slot->error = std::current_exception();
    }
    lock.lock();
    slot->state = Slot::State::done;
    changed_.notify_all();
  }
}

void Loader::read(Batch& batch) const {
  const size_t values = events_->shape().image_values(), pixels = events_->shape().pixels();
  batch.images = std::make_unique_for_overwrite<float[]>(batch.samples.size() * values);
  batch.labels = std::make_unique_for_overwrite<uint8_t[]>(batch.samples.size() * pixels);
  for (size_t place = 0; place < batch.samples.size(); ++place) {
    float* image = batch.images.get() + place * values;
    uint8_t* labels = batch.labels.get() + place * pixels;
    events_->read(batch.samples[place], image, labels);
    const uint8_t highest = *std::max_element(labels, labels + pixels);
    if (highest >= options_.classes)
      throw ConfigError(fmt::format("{}: it has a pixel of class {}; expected 0 to {}",
                                    events_->name_of(batch.samples[place]), highest, options_.classes - 1));
    if (!std::all_of(image, image + values, [](float value) { return std::isfinite(value); }))
      throw ConfigError(
          fmt::format("{}: it has a value that is not a finite number", events_->name_of(batch.samples[place])));
  }
}

}  // namespace ddip::data
