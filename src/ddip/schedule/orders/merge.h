// When a rank holds several stages: whose turn is it?
#pragma once

#include <vector>

#include "ddip/schedule/orders/order.h"

namespace ddip::schedule {

// List scheduling: each rank does at any time what of its stages' next works could begin first; a backward before a
// forward. Every stage keeps its own order. `stages`: one order for each stage; returns one for each rank.
std::vector<Order> merge(const Request& request, const std::vector<Order>& stages);

}  // namespace ddip::schedule
