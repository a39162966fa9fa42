// Starts a group: the detached process that is its coordinator and agent.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace ddip::client {

struct StartOptions {
  std::string program;    // the `ddip` executable
  nlohmann::json config;  // what `ddip serve` reads; apps/ddip/serve.cpp says what is in it
  double timeout = 60;    // seconds, until every rank is ready
};

// Returns what the coordinator said when all ranks were ready. `progress` is called with each line it says before, and
// at least every 100 ms with an empty one, so that the caller can look at signals; what it throws ends the start.
// Throws ConfigError or TimedOut with the coordinator's own words.
nlohmann::json start_group(const StartOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace ddip::client
