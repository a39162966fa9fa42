// What `ddip doctor` looks at: each check is a line with a verdict and, if it is not ok, a remedy.
#pragma once

#include <string>
#include <vector>

#include "context.h"

namespace ddip::app {

enum class Verdict { ok, warn, fail };

struct Check {
  std::string name;
  Verdict verdict = Verdict::ok;
  std::string text;
  std::string remedy = "";
};

std::vector<Check> check_python(const Context& context,
                                const std::string& python);  // Python, ddip, torch, fork, IPython, Jupyter
std::vector<Check> check_gpus(const Context& context);
std::vector<Check> check_folders(const Context& context);
std::vector<Check> check_limits();  // memory, locked memory, open files, /dev/shm, ptrace, user

}  // namespace ddip::app
