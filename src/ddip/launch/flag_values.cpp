#include "ddip/launch/flag_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <optional>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"

namespace ddip::launch {
namespace {

constexpr std::size_t kLongestShown = 60;
constexpr std::size_t kLongestGroupName = 32;
constexpr double kLongestSeconds = 365.0 * 24 * 3600;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }
bool beyond_ascii(char c) { return static_cast<unsigned char>(c) >= 0x80; }

// "1e9" and "-3" are numbers too: they deserve a better answer than "not a number".
std::optional<double> real_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || text.empty()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return HUGE_VAL;
  if (error != std::errc{} || std::isnan(value)) return std::nullopt;
  return value;
}

double unit_seconds(char unit) {
  switch (unit) {
    case 's': return 1;
    case 'm': return 60;
    case 'h': return 3600;
    case 'd': return 24 * 3600;
    default: return 0;
  }
}

constexpr std::array kPythonKeywords = {"False",  "None",   "True",    "and",      "as",       "assert", "async",
                                        "await",  "break",  "class",   "continue", "def",      "del",    "elif",
                                        "else",   "except", "finally", "for",      "from",     "global", "if",
                                        "import", "in",     "is",      "lambda",   "nonlocal", "not",    "or",
                                        "pass",   "raise",  "return",  "try",      "while",    "with",   "yield"};

}  // namespace

std::string shown(std::string_view text) {
  const bool quoted = text.empty() || text.find(' ') != std::string_view::npos;
  std::string out = quoted ? "'" : "";
  for (const char c : text.substr(0, kLongestShown)) {
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::array<char, 5> escaped{};
      std::snprintf(escaped.data(), escaped.size(), "\\x%02x", static_cast<unsigned>(c));
      out += escaped.data();
    } else {
      out += c;
    }
  }
  // Never end inside a UTF-8 letter: Python would refuse the whole message.
  if (text.size() > kLongestShown) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xc0) == 0x80) out.pop_back();
    if (!out.empty() && beyond_ascii(out.back())) out.pop_back();
    out += "...";
  }
  return quoted ? out + "'" : out;
}

void refuse(const FlagText& flag, const std::string& why) { throw ConfigError(flag.where + ": " + why); }

std::uint64_t whole_number(const FlagText& flag, const WholeNumber& expected) {
  const std::string& text = flag.text;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (whole && value >= expected.smallest && value <= expected.largest) return value;

  std::string why = "expected " + expected.noun + " from " + std::to_string(expected.smallest) + " to " +
                    std::to_string(expected.largest);
  const auto real = real_number(text);
  const bool too_large = real && *real > static_cast<double>(expected.largest);
  if (too_large && !expected.why_largest.empty()) why += "; " + expected.why_largest;
  refuse(flag, why);
}

Seconds seconds(const FlagText& flag, const std::string& zero_means) {
  std::string_view text = flag.text;
  double unit = text.empty() ? 0 : unit_seconds(text.back());
  if (unit > 0) text.remove_suffix(1);
  const auto value = real_number(text);
  const double result = value.value_or(-1) * (unit > 0 ? unit : 1);
  const bool zero_allowed = !zero_means.empty();
  if (result > kLongestSeconds) refuse(flag, "expected at most 365d");
  if (!(result > 0) && !(zero_allowed && result == 0)) {
    refuse(flag, "expected seconds above 0, or a time such as 90s, 10m, 12h" +
                     (zero_allowed ? " (0: " + zero_means + ")" : std::string()));
  }
  return Seconds(std::abs(result));
}

std::string one_of(const FlagText& flag, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), flag.text) != choices.end()) return flag.text;
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : "|") + choice;
  refuse(flag, "expected " + list + did_you_mean(flag.text, choices));
}

bool is_group_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestGroupName &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_word(c) || c == '-'; });
}

std::string group_name(const FlagText& flag) {
  if (!is_group_name(flag.text)) refuse(flag, "expected a name of 1 to 32 letters, digits, _ or -");
  return flag.text;
}

bool is_python_name(std::string_view text) {
  if (text.empty() || is_digit(text.front())) return false;
  if (!std::all_of(text.begin(), text.end(), [](char c) { return is_word(c) || beyond_ascii(c); })) return false;
  return std::find(kPythonKeywords.begin(), kPythonKeywords.end(), text) == kPythonKeywords.end();
}

std::string python_name(const FlagText& flag) {
  if (!is_python_name(flag.text)) refuse(flag, "expected a Python variable's name");
  return flag.text;
}

std::vector<std::string> python_names(const FlagText& flag) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= flag.text.size();) {
    size_t end = std::min(flag.text.find(',', begin), flag.text.size());
    names.push_back(flag.text.substr(begin, end - begin));
    if (!is_python_name(names.back())) refuse(flag, "expected names of Python variables, a,b,c");
    begin = end + 1;
  }
  return names;
}

bool is_variable_name(std::string_view text) {
  return !text.empty() && !is_digit(text.front()) && std::all_of(text.begin(), text.end(), is_word);
}

}  // namespace ddip::launch
