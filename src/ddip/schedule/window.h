// How far a stage may run ahead of its own backwards. The window is what fills the pipe, and what makes weights stale.
#pragma once

#include <vector>

#include "ddip/schedule/request.h"

namespace ddip::schedule {

// By stage. 0 for the last one; before it W_i = W_next + ceil((c + 2x) / c), where c is the time of a micro-batch on
// the slowest rank and x that of a message on the link between: as many micro-batches as fit into the way there and
// back. Links that cost nothing give the textbook's depth.
std::vector<int> default_window(const Request& request);

// No more than `most` ahead anywhere, and stages that lie behind one another keep their distance.
std::vector<int> capped_window(const std::vector<int>& window, int most);

}  // namespace ddip::schedule
