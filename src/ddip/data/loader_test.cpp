#include "ddip/data/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <latch>
#include <set>

#include "ddip/base/error.h"

namespace ddip::data {
namespace {

// Each event's image is its number; reading may be made to wait, or to fail.
class FakeEvents : public EventSet {
 public:
  explicit FakeEvents(uint64_t events) : shape_{events, 1, 2, 2} {}
  const EventShape& shape() const override { return shape_; }
  bool has_labels() const override { return true; }
  std::string name_of(uint64_t event) const override { return "event " + std::to_string(event); }
  void read(uint64_t event, float* image, uint8_t* labels) const override {
    ++reads;
    if (on_read) on_read(event);
    std::fill_n(image, 4, static_cast<float>(event));
    std::fill_n(labels, 4, static_cast<uint8_t>(event == bad_label ? 3 : 1));
    if (event == not_finite) image[2] = NAN;
  }

  EventShape shape_;
  std::function<void(uint64_t)> on_read;
  uint64_t bad_label = UINT64_MAX, not_finite = UINT64_MAX;
  mutable std::atomic<int> reads = 0;
};

LoaderOptions options(uint64_t batch, int threads = 3, int ahead = 4) {
  LoaderOptions options;
  options.sampling.batch = batch;
  options.sampling.seed = 5;
  options.threads = threads;
  options.ahead = ahead;
  options.classes = 3;
  return options;
}

TEST(Loader, gives_the_samplers_batches_in_its_order_whichever_thread_is_first) {
  auto events = std::make_shared<FakeEvents>(103);
  // Every third event is slow: with its neighbours read by other threads, order would suffer if it could.
  events->on_read = [](uint64_t event) {
    for (int spin = 0; event % 3 == 0 && spin < 100; ++spin) std::this_thread::yield();
  };
  Loader loader(events, options(4));
  SamplerOptions sampling = options(4).sampling;
  sampling.samples = 103;
  Sampler sampler(sampling);
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    loader.begin_epoch(epoch);
    sampler.begin_epoch(epoch);
    EXPECT_EQ(loader.remaining(), 103u);
    std::set<uint64_t> seen;
    while (auto batch = loader.next()) {
      EXPECT_EQ(batch->samples, sampler.next());
      for (size_t place = 0; place < batch->samples.size(); ++place) {
        seen.insert(batch->samples[place]);
        EXPECT_EQ(batch->images[place * 4 + 3], static_cast<float>(batch->samples[place]));
      }
    }
    EXPECT_EQ(seen.size(), 103u);
    EXPECT_EQ(loader.remaining(), 0u);
    EXPECT_FALSE(loader.next().has_value()) << "it stays at the end";
  }
}

TEST(Loader, reads_ahead_as_far_as_it_may_and_no_further) {
  auto events = std::make_shared<FakeEvents>(100);
  std::latch read(3 * 2);
  events->on_read = [&](uint64_t) { read.count_down(); };
  Loader loader(events, options(2, 1, 3));
  loader.begin_epoch(0);
  read.wait();  // three batches of two, before anything is asked for; one more would end the process (latch)
  EXPECT_EQ(events->reads, 6);
  events->on_read = nullptr;
}

TEST(Loader, an_epoch_may_begin_in_the_middle_of_another_and_leaves_out_what_is_done) {
  auto events = std::make_shared<FakeEvents>(50);
  Loader loader(events, options(4));
  loader.begin_epoch(0);
  Ledger done;
  done.add(loader.next()->samples);
  loader.begin_epoch(0, done);
  std::set<uint64_t> rest;
  while (auto batch = loader.next()) {
    for (uint64_t sample : batch->samples) {
      EXPECT_FALSE(done.contains(sample));
      rest.insert(sample);
    }
  }
  EXPECT_EQ(rest.size(), 46u);
}

TEST(Loader, a_bad_event_is_an_error_where_it_comes_and_nowhere_else) {
  auto events = std::make_shared<FakeEvents>(12);
  LoaderOptions in_order = options(3);
  in_order.sampling.shuffle = false;
  events->bad_label = 4;
  events->not_finite = 10;
  Loader loader(events, in_order);
  loader.begin_epoch(0);
  auto said = [&] {
    try {
      loader.next();
      return std::string("nothing");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(said(), "nothing");
  EXPECT_EQ(said(), "event 4: it has a pixel of class 3; expected 0 to 2");
  EXPECT_EQ(said(), "nothing");
  EXPECT_EQ(said(), "event 10: it has a value that is not a finite number");
}

TEST(Loader, options_that_make_no_sense_are_refused) {
  auto events = std::make_shared<FakeEvents>(12);
  EXPECT_THROW(Loader(events, options(3, 0)), ConfigError);
  EXPECT_THROW(Loader(events, options(3, 1, 0)), ConfigError);
  EXPECT_THROW(Loader(events, options(0)), ConfigError);
}

}  // namespace
}  // namespace ddip::data
