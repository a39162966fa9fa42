// Text inside an XML or SVG file.
#pragma once

#include <string>
#include <string_view>

namespace ddip {

// Safe between tags and in quoted attributes; control characters, which XML cannot have, are left out.
std::string xml_text(std::string_view text);

}  // namespace ddip
