// The best cut of a model whose layers form a chain: exact, by dynamic programming.
#pragma once

#include "ddip/partition/cost.h"

namespace ddip::partition {

// No cut into that many stages, each on a device of its own, has a faster slowest device; among those that are as fast,
// none sends fewer bytes. Throws ConfigError if no cut respects the memory cap.
// REQUIRES: graph.is_chain(), 1 ≤ stages ≤ layers.
Cut cut_chain(const Graph& graph, size_t stages, const Costs& costs);

// The same for any graph if only cuts of this order into pieces count, which is not every cut: where a search begins.
// Counts a value that several later stages need once at its maker's, and overdraws the cap where it must.
Cut cut_order(const Graph& graph, const std::vector<size_t>& order, size_t stages, const Costs& costs);

}  // namespace ddip::partition
