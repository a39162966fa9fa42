// ddip-torch [--ddip PATH] unet train|evaluate|predict …: executed by `ddip`, which people call.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "ddip/base/error.h"
#include "unet.h"

namespace ddip::torch_app {
namespace {

int dispatch(Arguments arguments) {
  std::string ddip = "ddip";
  if (arguments.size() >= 2 && arguments[0] == "--ddip") {
    ddip = arguments[1];
    arguments.erase(arguments.begin(), arguments.begin() + 2);
  }
  if (arguments.empty() || arguments[0] != "unet")
    throw ConfigError("ddip-torch: expected unet; people call ddip, which calls this");
  arguments.erase(arguments.begin());
  return unet(ddip, arguments);
}

int complain(const std::string& what, int code) {
  std::string text = what.substr(0, what.find('\n'));
  // One of several ranks says which.
  const char* rank = std::getenv("RANK");
  if (!text.starts_with("ddip"))
    text = fmt::format("ddip unet: {}{}", rank ? fmt::format("rank {}: ", rank) : "", text);
  std::fflush(stdout);
  fmt::print(stderr, "{}\n", text);
  return code;
}

int guarded(const Arguments& arguments) {
  try {
    return dispatch(arguments);
  } catch (const launch::HelpRequested& help) {
    fmt::print("{}", help.text);
    return 0;
  } catch (const ConfigError& error) {
    return complain(error.what(), 2);
  } catch (const std::exception& error) {
    return complain(error.what(), 1);
  }
}

}  // namespace
}  // namespace ddip::torch_app

int main(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error to report, not a reason to die
  const int code = ddip::torch_app::guarded({argv + 1, argv + argc});
  return std::fflush(stdout) == 0 ? code : std::max(code, 1);
}
