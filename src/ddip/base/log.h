// One line per event to standard error (the coordinator's is its log file), with wall time and process id.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace ddip {

void log_line(std::string_view line);

template <typename... Args>
void log(fmt::format_string<Args...> format, Args&&... args) {
  log_line(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ddip
