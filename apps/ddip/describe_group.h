// A group in words, from the coordinator's `info`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "style.h"

namespace ddip::app {

std::string describe_group(const nlohmann::json& info, const Style& style);

// "it outlives this shell and ends after 12 h without use (--idle)"
std::string life_of(const nlohmann::json& info);

}  // namespace ddip::app
