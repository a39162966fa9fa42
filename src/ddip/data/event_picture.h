// Events as people look at them: energies in grey, classes in colour (shower blue, track orange).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ddip/data/png.h"

namespace ddip::data {

// Panels of equal size side by side, a white gap between them.
class EventPicture {
 public:
  EventPicture(int panels, int height, int width);

  void energies(int panel, std::span<const float> image);  // MeV × 100
  void classes(int panel, std::span<const uint8_t> labels);

  const Picture& picture() const { return picture_; }

 private:
  int height_;
  int width_;
  Picture picture_;
};

}  // namespace ddip::data
