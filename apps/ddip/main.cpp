#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "command.h"
#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"
#include "serve.h"

namespace ddip::app {
namespace {

std::string overview() {
  std::string text = "ddip: train on many workers, from a notebook or from here\nusage: ddip COMMAND [flags]\n\n";
  for (const Command& command : commands()) text += fmt::format("  {:<11} {}\n", command.name, command.flags.purpose);
  return text +
         "\nddip COMMAND --help explains one of them. NAME may be left out where only one group runs.\n"
         "exit codes: 0 done, 1 it failed, 2 the request was wrong; ddip run: the first failing rank's\n\n"
         "examples\n"
         "  ddip up -n 2                                # two workers, which stay when this shell ends\n"
         "  ddip exec 'import os; print(os.getpid())'   # on both of them\n"
         "  ddip why                                    # what each rank is doing, and who is missing\n"
         "  ddip run -n 2 -- python train.py            # a torchrun script, unchanged\n";
}

std::vector<std::string> names() {
  std::vector<std::string> found;
  for (const Command& command : commands()) found.push_back(command.name);
  return found;
}

[[noreturn]] void refuse_command(const std::string& name) {
  const std::string place = "ddip " + launch::shown(name) + ": ";
  const std::string near = did_you_mean(name, names());
  throw ConfigError(place + "there is no such " + (name.starts_with("-") ? "flag" : "command") +
                    (near.empty() ? "; ddip --help lists the commands" : near));
}

int dispatch(const Context& context, Arguments arguments) {
  if (arguments.empty()) throw ConfigError("ddip: expected a command; ddip --help lists them");
  const std::string name = arguments.front();
  arguments.erase(arguments.begin());
  if (name == "--version" || name == "-V") {
    fmt::print("ddip {}\n", DDIP_VERSION);
    return 0;
  }
  if (name == "--help" || name == "-h" || name == "help") throw launch::HelpRequested{overview()};
  for (const Command& command : commands()) {
    if (command.name == name) return command.run(context, arguments);
  }
  refuse_command(name);
}

// One line, whatever was thrown; messages that do not say so themselves begin with the command.
int complain(const Arguments& arguments, const std::string& what, int code) {
  std::string text = one_line(what);
  if (!text.starts_with("ddip")) text = "ddip " + (arguments.empty() ? "" : arguments.front()) + ": " + text;
  std::fflush(stdout);
  fmt::print(stderr, "{}\n", text);
  return code;
}

int guarded(const Context& context, const Arguments& arguments) {
  try {
    return dispatch(context, arguments);
  } catch (const launch::HelpRequested& help) {
    fmt::print("{}", help.text);
    return 0;
  } catch (const ConfigError& error) {
    return complain(arguments, error.what(), 2);
  } catch (const std::exception& error) {
    return complain(arguments, error.what(), 1);
  }
}

}  // namespace
}  // namespace ddip::app

int main(int argc, char** argv) {
  const ddip::app::Arguments arguments(argv + 1, argv + argc);
  if (arguments == ddip::app::Arguments{"serve"}) return ddip::app::serve();
  const int code = ddip::app::guarded(ddip::app::Context::from_environment(argv[0]), arguments);
  return std::fflush(stdout) == 0 ? code : std::max(code, 1);
}
