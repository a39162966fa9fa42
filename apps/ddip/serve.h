#pragma once

namespace ddip::app {

// `ddip serve`: the detached process of one group, coordinator and agent in one. Started by client::start_group, which
// writes the configuration to standard input and reads progress, "ready" or "error" from standard output, one JSON
// object a line.
int serve();

}  // namespace ddip::app
