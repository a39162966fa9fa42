// What each rank has, on every rank. All ranks call these together.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddip/tensors/communicator.h"

namespace ddip::pipeline {

// In the order of the ranks.
std::vector<std::string> gather_bytes(tensors::Communicator& ranks, const std::string& mine);
std::vector<nlohmann::json> gather_json(tensors::Communicator& ranks, const nlohmann::json& mine);

// What every rank has to say after its part of some work. If one failed, all throw ConfigError: its own error, or
// whose.
std::vector<nlohmann::json> agreed(tensors::Communicator& ranks, const std::function<nlohmann::json()>& work);

using NamedTensors = std::map<std::string, at::Tensor>;
// Those of all ranks together, on the CPU.
NamedTensors gather_tensors(tensors::Communicator& ranks, const NamedTensors& mine);

}  // namespace ddip::pipeline
