// The table of %makedip's flags. Private to launch/: group_options.cpp gives them meaning.
#pragma once

#include <string>

#include "ddip/launch/flags.h"

namespace ddip::launch {

FlagTable group_flags(const std::string& command);

}  // namespace ddip::launch
