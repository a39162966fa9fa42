// Which Python workers run in, and questions to it.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "context.h"

namespace ddip::app {

// The path of an executable as a shell would find it; nothing if there is none.
std::optional<std::string> find_program(const Context& context, const std::string& name);

// `asked` (--python) if given, else the Python of the environment this program was called from, else python3 of PATH.
// ConfigError, beginning with `where`, if there is none.
std::string find_python(const Context& context, const std::string& asked, const std::string& where);

// PYTHONPATH as the workers need it: from a working copy, the package beside this program first.
std::string python_path(const Context& context);

struct Answer {
  bool ended = false;  // in time
  int code = 0;        // exit code, or 128 + signal
  std::string out;
  std::string err;
};

// Runs `script` with -c. REQUIRES: this process has one thread.
Answer ask_python(const Context& context, const std::string& python, const std::string& script,
                  std::chrono::seconds patience);

// This process becomes `python -m module arguments`, as workers would find the package. Returns only by throwing.
[[noreturn]] void become_python_module(const Context& context, const std::string& python, const std::string& module,
                                       const std::vector<std::string>& arguments);

// REQUIRES: as above. ConfigError, beginning with `where`, if that Python has not what this app (%makedip -a) prepares
// for; an app of no name needs nothing.
void require_app(const Context& context, const std::string& python, const std::string& app, const std::string& where);

}  // namespace ddip::app
