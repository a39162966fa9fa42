// Mixed placement: several stages, not adjacent ones, on one device.
#pragma once

#include <optional>

#include "ddip/partition/cost.h"
#include "ddip/partition/search.h"

namespace ddip::partition {

// The way in and the way out through the devices, 0 … D−1 … 0: device k holds a piece of the model's beginning and the
// mirrored piece of its end, so that one value goes in and one comes out of all that lies deeper, and no skip
// connection crosses a link (a U-Net: encoder block k beside decoder block k). The fastest such cut over graph.order();
// nothing if there is none, or none that surely fits in the memory cap. Chains have no mirror: nothing.
std::optional<Cut> cut_mirrored(const Graph& graph, size_t devices, const Costs& costs);

// The best of: one stage per device, the mirrored cut, and what a search finds from the mirrored and from the
// interleaved (0 … D−1 0 … D−1) sequence of devices. The mirrored one wins also if it is up to `slack` times slower,
// where less waits in buffers with it: a skip that jumps over stages is held once for each of them. Throws as
// cut_model().
Cut cut_mixed(const Graph& graph, size_t devices, const Costs& costs, const SearchOptions& options = {},
              double slack = 1.5);

}  // namespace ddip::partition
