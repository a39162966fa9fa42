#include "code_source.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "ddip/base/error.h"
#include "ddip/launch/flag_values.h"

namespace ddip::app {
namespace fs = std::filesystem;

namespace {

constexpr size_t kLargest = size_t{8} << 20;  // a frame holds 16 MiB

std::string read_input(const std::string& where) {
  if (::isatty(0) == 1) fmt::print(stderr, "{}: reading code from the terminal, Ctrl-D ends it\n", where);
  std::string text;
  std::array<char, 65536> part{};
  for (ssize_t count; (count = ::read(0, part.data(), part.size())) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno("read standard input");
    text.append(part.data(), static_cast<size_t>(count));
    if (text.size() > kLargest)
      throw ConfigError(fmt::format("{} -: more than {} MiB of code; expected less", where, kLargest >> 20));
  }
  return text;
}

std::string read_file(const std::string& name, const std::string& where) {
  const std::string place = where + " " + launch::shown(name) + ": ";
  std::error_code error;
  const fs::file_status status = fs::status(name, error);
  if (!fs::exists(status))
    throw ConfigError(place + "no such file; expected a Python file, code, or - for standard input");
  if (!fs::is_regular_file(status)) throw ConfigError(place + "not a plain file; use - to read from a pipe");
  if (fs::file_size(name, error) > kLargest)
    throw ConfigError(fmt::format("{}more than {} MiB; expected a Python file", place, kLargest >> 20));
  std::ifstream file(name, std::ios::binary);
  if (!file) throw ConfigError(place + "cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

bool is_utf8(const std::string& text) {
  try {
    [[maybe_unused]] const std::string ignored = nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace

std::string read_code(const std::string& word, const std::string& where) {
  const bool is_file = word.ends_with(".py") && word.find_first_of("\n ;") == std::string::npos;
  std::string code = word == "-" ? read_input(where) : is_file ? read_file(word, where) : word;
  if (!is_utf8(code)) throw ConfigError(where + ": the code is not UTF-8");
  if (code.find('\0') != std::string::npos) throw ConfigError(where + ": the code holds a null byte");
  if (code.find_first_not_of(" \t\r\n") == std::string::npos)
    throw ConfigError(where + ": no code; expected code, FILE.py, or - for standard input");
  return code;
}

}  // namespace ddip::app
