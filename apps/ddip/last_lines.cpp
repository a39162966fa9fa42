#include "last_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ddip::app {

void LastLines::write(std::string_view text) {
  if (!most_) return fmt::print("{}", text);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    if (held_.empty() || held_.back().ends_with('\n')) held_.emplace_back();
    held_.back() += text.substr(0, end);
    text.remove_prefix(end);
    if (held_.size() > *most_) held_.pop_front();
  }
}

void LastLines::release() {
  most_.reset();
  for (const std::string& line : std::exchange(held_, {})) fmt::print("{}", line);
}

}  // namespace ddip::app
