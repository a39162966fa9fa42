// Everything a command takes from outside, read once: environment, folders, what the terminal can do.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "style.h"

namespace ddip::app {

struct Context {
  static Context from_environment(const char* argv0);

  // Empty if it is not set.
  std::string variable(const std::string& name) const;

  std::map<std::string, std::string> environment;
  std::filesystem::path program;  // this executable, links resolved
  std::filesystem::path folder;   // of the command as it was called, links kept: .venv/bin
  std::filesystem::path runtime;  // of all groups of this user
  std::filesystem::path state;    // of all journals
  Style out;
  Style err;
};

}  // namespace ddip::app
