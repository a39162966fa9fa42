// Where a saved pipeline was cut: measured again, a model may be cut elsewhere, and what was saved would not fit.
//
//   auto model = ddip::pipeline::cut(net, ddip::pipeline::saved_stages("run"));
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ddip/pipeline/part.h"

namespace ddip::pipeline {

// By stage the names of its layers. Throws ConfigError: no pipeline is saved there, or one whose stages nobody has cut.
std::vector<std::vector<std::string>> saved_stages(const std::filesystem::path& folder);

// As a save has it; null: nobody has cut them.
nlohmann::json layers_of(const std::vector<Part>& parts);
// Throws ConfigError if both were cut, into as many stages, and not alike.
void require_same_cut(const nlohmann::json& saved, const nlohmann::json& here);

}  // namespace ddip::pipeline
