// "Who is where, who is missing": the coordinator's answer to `why`, in sentences. One text for notebook and shell.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ddip::client {

// One line per rank, then, if some ranks wait in a collective and others are not in it, a line that names those.
std::vector<std::string> explain(const nlohmann::json& why);

// The innermost frame of the user's own code in a stack as the worker gives it: "<cell 4>, line 2 in step"; frames of
// libraries come into it only if there is nothing else. Empty: no Python frame.
std::string user_frame(const std::string& stack);

}  // namespace ddip::client
