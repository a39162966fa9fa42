// Synthetic events of a liquid-argon detector: tracks, which are thin and even, and electromagnetic showers, which
// begin in a point and fan out. Made anywhere from a seed and a number, the same everywhere.
#pragma once

#include <cstdint>
#include <vector>

namespace ddip::data {

enum class Pixel : uint8_t { background = 0, shower = 1, track = 2 };

struct Event {
  std::vector<float> image;     // size × size, energies in MeV × 100; what is below 10 is zero
  std::vector<uint8_t> labels;  // Pixel; where both pass, track
};

constexpr int kLeastEventSize = 64;

// 2 to 5 particles. On average more than 99% of the pixels are background, in every event more than 97%.
// REQUIRES: size >= kLeastEventSize.
Event make_event(uint64_t seed, uint64_t number, int size = 256);

}  // namespace ddip::data
