#include "context.h"

#include <unistd.h>

#include <sstream>

#include "ddip/client/group_folder.h"
#include "ddip/net/local_socket.h"

extern char** environ;

namespace ddip::app {
namespace fs = std::filesystem;

namespace {

// argv[0] as the shell found it: with a slash a path, without one a name to look for in PATH.
fs::path folder_of_call(const std::string& argv0, const std::string& path) {
  std::error_code error;
  if (argv0.find('/') != std::string::npos) return fs::absolute(argv0, error).parent_path();
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((fs::path(folder) / argv0).c_str(), X_OK) == 0) return fs::absolute(folder, error);
  }
  return {};
}

}  // namespace

std::string Context::variable(const std::string& name) const {
  auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

Context Context::from_environment(const char* argv0) {
  Context context;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string text = *entry;
    size_t equals = text.find('=');
    if (equals != std::string::npos) context.environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  std::error_code error;
  context.program = fs::read_symlink("/proc/self/exe", error);
  context.folder = folder_of_call(argv0, context.variable("PATH"));
  context.runtime = net::runtime_folder(context.variable("DDIP_RUNTIME_DIR"));
  context.state = client::state_folder(context.variable("XDG_STATE_HOME"), context.variable("HOME"));
  const bool wanted = context.variable("NO_COLOR").empty() && context.variable("TERM") != "dumb";
  context.out = {wanted && ::isatty(1) == 1, ::isatty(1) == 1};
  context.err = {wanted && ::isatty(2) == 1, ::isatty(2) == 1};
  return context;
}

}  // namespace ddip::app
