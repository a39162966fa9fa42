// A plan as a file that a person can read, edit or write: JSON, one action a line.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "ddip/schedule/plan.h"

namespace ddip::schedule {

std::string to_json(const Plan& plan);

// Strict: nothing unknown, nothing twice, nothing missing. Then the checker looks at it. Throws ConfigError: one line.
Plan from_json(std::string_view text);

// Both throw ConfigError that begins with the path.
void save(const Plan& plan, const std::filesystem::path& path);
Plan load(const std::filesystem::path& path);

}  // namespace ddip::schedule
