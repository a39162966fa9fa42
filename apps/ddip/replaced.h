// Waiting for ranks that were replaced.
#pragma once

#include <vector>

#include "ddip/client/client.h"

namespace ddip::app {

// Until each of these ranks is ready in a later incarnation than `before`, an answer to `info`, knows. Returns the
// newest info. Throws TimedOut.
wire::json await_replaced(client::Client& client, const wire::json& before, const std::vector<int>& ranks);

}  // namespace ddip::app
