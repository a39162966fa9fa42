#include "ddip/data/events.h"

#include <cmath>
#include <numbers>

#include "ddip/base/check.h"
#include "ddip/data/random.h"

namespace ddip::data {
namespace {

constexpr double kThreshold = 10;  // MeV × 100
constexpr double kTrackEnergy = 210, kTrackSpread = 35;
constexpr double kHitEnergy = 90;

class Canvas {
 public:
  explicit Canvas(int size)
      : size_(size),
        shower_(static_cast<size_t>(size) * static_cast<size_t>(size)),
        track_(static_cast<size_t>(size) * static_cast<size_t>(size)) {}

  bool inside(double x, double y) const { return x >= 0 && y >= 0 && x < size_ && y < size_; }
  void add(double x, double y, double energy, bool is_track) {
    if (!inside(x, y)) return;
    size_t place = static_cast<size_t>(y) * static_cast<size_t>(size_) + static_cast<size_t>(x);
    (is_track ? track_ : shower_)[place] += energy;
  }

  Event event() const {
    Event event;
    for (size_t place = 0; place < track_.size(); ++place) {
      // Whole hundredths: the last bits of a machine's arithmetic do not show.
      double energy = std::floor(shower_[place] + track_[place]);
      bool seen = energy >= kThreshold;
      Pixel pixel = Pixel::background;
      if (seen) pixel = track_[place] > 0 ? Pixel::track : Pixel::shower;
      event.image.push_back(seen ? static_cast<float>(energy) : 0.0f);
      event.labels.push_back(static_cast<uint8_t>(pixel));
    }
    return event;
  }

 private:
  const int size_;
  std::vector<double> shower_;
  std::vector<double> track_;
};

struct Start {
  double x, y, angle;
};

Start start_in(Random& random, int size) {
  return {random.uniform(0.15, 0.85) * size, random.uniform(0.15, 0.85) * size,
          random.uniform(0, 2 * std::numbers::pi)};
}

// A particle that loses the same energy everywhere and is scattered a little.
void add_track(Canvas& canvas, Random& random, int size) {
  auto [x, y, angle] = start_in(random, size);
  const double length = random.uniform(0.15, 0.5) * size;
  for (double way = 0; way < length && canvas.inside(x, y); way += 1) {
    canvas.add(x, y, std::max(60.0, kTrackEnergy + kTrackSpread * random.normal()), true);
    angle += 0.012 * random.normal();
    x += std::cos(angle);
    y += std::sin(angle);
  }
}

// Many particles: most energy a few lengths behind the start, and wider the further it goes.
void add_shower(Canvas& canvas, Random& random, int size) {
  auto [x, y, angle] = start_in(random, size);
  const double scale = 0.04 * size * random.uniform(0.8, 1.3);
  const int hits = static_cast<int>(random.uniform(0.35, 0.85) * size);
  for (int hit = 0; hit < hits; ++hit) {
    double depth = random.exponential(scale) + random.exponential(scale);
    double aside = (0.6 + 0.16 * depth) * random.normal();
    canvas.add(x + depth * std::cos(angle) - aside * std::sin(angle),
               y + depth * std::sin(angle) + aside * std::cos(angle), random.exponential(kHitEnergy), false);
  }
}

}  // namespace

Event make_event(uint64_t seed, uint64_t number, int size) {
  DDIP_CHECK(size >= kLeastEventSize, "an event has room");
  Random random(seed, number);
  Canvas canvas(size);
  const uint64_t particles = 2 + random.below(4);
  for (uint64_t particle = 0; particle < particles; ++particle) {
    if (random.below(2) == 0)
      add_track(canvas, random, size);
    else
      add_shower(canvas, random, size);
  }
  return canvas.event();
}

}  // namespace ddip::data
