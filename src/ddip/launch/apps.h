// The libraries that workers can be prepared for (%makedip -a). Each is python/ddip/apps/NAME, which has the code;
// tests/test_apps.py holds the two lists together.
#pragma once

#include <string>
#include <vector>

namespace ddip::launch {

struct App {
  std::string name;
  std::string module;   // the workers' Python must have it
  std::string preload;  // the warm parent imports it, comma separated, so that the workers need not
};

const std::vector<App>& apps();

// nullptr: there is none of that name ("none" and "" among them).
const App* find_app(const std::string& name);

// What -a may say: "none", then the names.
std::vector<std::string> app_names();

}  // namespace ddip::launch
