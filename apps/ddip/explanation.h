// client::explain() with the text of the lines it names: "<cell 4>, line 2" alone says little in a shell.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ddip/client/client.h"

namespace ddip::app {

// `why` is the coordinator's answer, `journal` the folder where the cells' sources are.
std::vector<std::string> explanation(const wire::json& why, const std::filesystem::path& journal);

// Where this rank is: "<cell 4>, line 2: time.sleep(100)".
std::string place_of(const wire::json& rank, const std::filesystem::path& journal);

}  // namespace ddip::app
