#pragma once

#include <string_view>

namespace ddip::app {

// Also through signals, and to a descriptor that does not block. Throws std::system_error if nobody takes it.
void write_all(int fd, std::string_view bytes);

}  // namespace ddip::app
