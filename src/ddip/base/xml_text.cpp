#include "ddip/base/xml_text.h"

namespace ddip {

std::string xml_text(std::string_view text) {
  std::string safe;
  for (char letter : text) {
    if (letter == '<')
      safe += "&lt;";
    else if (letter == '>')
      safe += "&gt;";
    else if (letter == '&')
      safe += "&amp;";
    else if (letter == '"')
      safe += "&quot;";
    else if (static_cast<unsigned char>(letter) >= 0x20)
      safe += letter;
  }
  return safe;
}

}  // namespace ddip
