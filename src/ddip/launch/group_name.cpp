#include "ddip/launch/group_name.h"

#include <array>
#include <cstddef>
#include <cstdio>

#include "ddip/base/check.h"
#include "ddip/launch/flag_values.h"

namespace ddip::launch {
namespace {

constexpr std::size_t kLongest = 32;
constexpr std::size_t kHashDigits = 6;

std::string_view file_stem(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);  // npos + 1 is 0
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos || dot == 0 ? path : path.substr(0, dot);
}

// Letters, digits and _ stay; each run of anything else becomes one '-'; none at the ends.
std::string slug(std::string_view text, std::size_t longest) {
  std::string out;
  for (const char c : text) {
    const bool kept = is_group_name(std::string_view(&c, 1)) && c != '-';
    if (kept) {
      out += c;
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
    if (out.size() == longest) break;
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out;
}

std::string joined(std::string_view text, const std::string& if_empty, const std::string& suffix) {
  std::string name = slug(text, kLongest - 1 - suffix.size());
  name = (name.empty() ? if_empty : name) + "-" + suffix;
  DDIP_CHECK(is_group_name(name), "a default name is a valid one");
  return name;
}

}  // namespace

std::uint64_t fnv1a_64(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  return hash;
}

std::string notebook_group_name(std::string_view path) {
  std::array<char, 17> hex{};
  std::snprintf(hex.data(), hex.size(), "%016llx", static_cast<unsigned long long>(fnv1a_64(path)));
  return joined(file_stem(path), "notebook", std::string(hex.data(), kHashDigits));
}

std::string script_group_name(std::string_view script, std::int64_t pid) {
  DDIP_CHECK(pid > 0, "a process has a positive id");
  const bool no_script = script == "-c" || script == "-m" || script == "-";
  return joined(no_script ? "" : file_stem(script), "python", std::to_string(pid));
}

}  // namespace ddip::launch
