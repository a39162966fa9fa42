// Where `ddip exec` takes its code from.
#pragma once

#include <string>

namespace ddip::app {

// "-": standard input. A word that ends in .py: that file. Anything else: the code itself. ConfigError, beginning with
// `where`, for a file that is missing, not a plain file or too large, and for text that is not UTF-8 or empty.
std::string read_code(const std::string& word, const std::string& where);

}  // namespace ddip::app
