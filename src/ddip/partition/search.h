// A good cut of any model: local search from several starts. The same seed gives the same cut.
#pragma once

#include <cstdint>

#include "ddip/partition/cost.h"

namespace ddip::partition {

struct SearchOptions {
  uint64_t seed = 0;
  int starts = 24;
};

// Which of two cuts is better: less over the memory cap, then the faster slowest device, then devices that are more
// alike (which leads out of plateaus), then fewer bytes on links.
bool better(const Cost& a, const Cost& b);

// Moves layers between the cut's stages while that makes it better; devices stay where they are, no stage gets empty.
Cut improved(const Graph& graph, Cut cut, const Costs& costs, uint64_t seed);

// Each stage on a device of its own. Throws ConfigError if what it found is over the memory cap.
// REQUIRES: 1 ≤ stages ≤ layers.
Cut search_cut(const Graph& graph, size_t stages, const Costs& costs, const SearchOptions& options = {});

// The front door: exact for chains, searched for the rest. Throws ConfigError: no stage, more stages than layers, none
// that fits in the memory cap.
Cut cut_model(const Graph& graph, size_t stages, const Costs& costs, const SearchOptions& options = {});

}  // namespace ddip::partition
