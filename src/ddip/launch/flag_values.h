// What a flag's value may be. Each function takes a value as written, and throws a one-line ConfigError that says
// where it stood and what was expected.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddip::launch {

using Seconds = std::chrono::duration<double>;

// Text a user wrote, safe inside a one-line message: quoted where it is empty or has blanks, control characters
// escaped, cut at 60 bytes.
std::string shown(std::string_view text);

struct FlagText {
  std::string where;  // "%makedip -n 0": the line begins with it
  std::string text;   // "0"
};

[[noreturn]] void refuse(const FlagText& flag, const std::string& why);

struct WholeNumber {
  std::string noun;  // "a number of workers"
  std::uint64_t smallest = 0;
  std::uint64_t largest = 0;
  std::string why_largest = "";  // said to who asks for more
};
std::uint64_t whole_number(const FlagText& flag, const WholeNumber& expected);

// "90", "1.5", "90s", "10m", "12h" or "2d", up to 365 days. Zero only where `zero_means` says what it does.
Seconds seconds(const FlagText& flag, const std::string& zero_means);

std::string one_of(const FlagText& flag, const std::vector<std::string>& choices);

// [A-Za-z0-9_-]{1,32}: what a group and a client may be called.
bool is_group_name(std::string_view text);
std::string group_name(const FlagText& flag);

// A name that Python accepts on the left of "=", keywords excluded. Letters beyond ASCII are let through: Python
// itself knows which of them are letters.
bool is_python_name(std::string_view text);
std::string python_name(const FlagText& flag);
std::vector<std::string> python_names(const FlagText& flag);  // a,b,c

// [A-Za-z_][A-Za-z0-9_]*
bool is_variable_name(std::string_view text);

}  // namespace ddip::launch
