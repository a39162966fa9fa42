#include "ddip/data/event_picture.h"

#include <algorithm>
#include <cmath>

namespace ddip::data {
namespace {

constexpr float kBrightest = 400;  // MeV × 100: what is above is as bright
constexpr int kGap = 8;

}  // namespace

EventPicture::EventPicture(int panels, int height, int width)
    : height_(height), width_(width), picture_(panels * (width + kGap) - kGap, height) {
  std::fill(picture_.rgb.begin(), picture_.rgb.end(), uint8_t{255});
}

void EventPicture::energies(int panel, std::span<const float> image) {
  for (int y = 0; y < height_; ++y) {
    for (int x = 0; x < width_; ++x) {
      const float value = image[static_cast<size_t>(y * width_ + x)];
      const float share = std::isfinite(value) ? std::clamp(value / kBrightest, 0.0F, 1.0F) : 1.0F;
      const auto grey = static_cast<uint8_t>(255 * std::sqrt(share));
      picture_.set(panel * (width_ + kGap) + x, y, grey, grey, grey);
    }
  }
}

void EventPicture::classes(int panel, std::span<const uint8_t> labels) {
  for (int y = 0; y < height_; ++y) {
    for (int x = 0; x < width_; ++x) {
      const int at = panel * (width_ + kGap) + x;
      switch (labels[static_cast<size_t>(y * width_ + x)]) {
        case 1: picture_.set(at, y, 80, 160, 255); break;
        case 2: picture_.set(at, y, 255, 150, 40); break;
        default: picture_.set(at, y, 0, 0, 0);
      }
    }
  }
}

}  // namespace ddip::data
