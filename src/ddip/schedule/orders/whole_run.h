// What every rank computes from the first micro-batch to the last, with the steps.
#pragma once

#include <vector>

#include "ddip/schedule/orders/order.h"

namespace ddip::schedule {

// One list for each part of the run that ends with a drain, and in it one order for each rank.
std::vector<std::vector<Order>> whole_run(const Request& completed);

}  // namespace ddip::schedule
