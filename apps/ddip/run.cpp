#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "command.h"
#include "ddip/base/error.h"
#include "ddip/launch/group_options.h"
#include "python.h"
#include "ranks.h"

namespace ddip::app {

launch::FlagTable run_flags() {
  using launch::Takes;
  return {
      "ddip run",
      "run a program on N ranks, in any language; torchrun scripts unchanged",
      "-n N [flags] -- PROGRAM [ARGUMENTS]",
      {{"shape",
        {{"--workers", "-n", Takes::Value, "N", "number of ranks"},
         {"--hosts", "-H", Takes::Value, "LIST", "several machines (later release)"},
         {"--slurm", "", Takes::Nothing, "", "ranks of a Slurm job (later release)"},
         {"--mpi", "", Takes::Nothing, "", "ranks of mpirun (later release)"}}},
       {"output",
        {{"--prefix", "", Takes::Nothing, "", "[rank] before each line (default on a terminal, with N > 1)"},
         {"--no-prefix", "", Takes::Nothing, "", "lines as they are"}}},
       {"how",
        {{"--grace", "", Takes::Value, "S", "after a failure or a signal, seconds until ranks are killed (default 5)"},
         {"--env", "", Takes::ManyValues, "K=V", "set a variable in the ranks; may be repeated"},
         {"--master-port", "", Takes::Value, "P", "port for torch.distributed (default: a free one)"},
         {"--python", "", Takes::Value, "PATH",
          "Python with torch for the store (default: PROGRAM, if it is a Python)"},
         {"--no-store", "", Takes::Nothing, "", "leave MASTER_PORT to the program: rank 0 listens there itself"}}}},
      {"ddip run -n 2 -- python train.py --epochs 3", "ddip run -n 4 --prefix -- ./simulate",
       "# sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and torchrun's own variables;",
       "# exits with the first failing rank's code, 128+n for signal n"}};
}

namespace {

struct Split {
  Arguments flags;
  Arguments program;
};

// The program begins behind "--", or at the first word that is neither a flag nor a flag's value.
Split split(const Arguments& arguments) {
  const launch::FlagTable table = run_flags();
  auto takes_next = [&](const std::string& argument) {
    for (const launch::FlagSection& section : table.sections) {
      for (const launch::Flag& flag : section.flags) {
        if (argument == flag.long_name || argument == flag.short_name) return flag.takes != launch::Takes::Nothing;
      }
    }
    return false;
  };
  auto at = arguments.begin();
  while (at != arguments.end() && *at != "--" && at->starts_with('-')) {
    const bool with_value = takes_next(*at++);
    if (with_value && at != arguments.end() && *at != "--") ++at;
  }
  Split found{{arguments.begin(), at}, {}};
  if (at != arguments.end() && *at == "--") ++at;
  found.program.assign(at, arguments.end());
  return found;
}

bool is_python(const std::string& program) {
  return std::filesystem::path(program).filename().string().starts_with("python");
}

std::map<std::string, std::string> environment(const Context& context, const launch::Flags& flags) {
  std::map<std::string, std::string> variables = context.environment;
  if (!flags.has("--env")) return variables;
  for (const launch::FlagText& flag : flags.values("--env")) {
    const size_t equals = flag.text.find('=');
    if (equals == std::string::npos || !launch::is_variable_name(flag.text.substr(0, equals)))
      launch::refuse(flag, "expected K=V, K of letters, digits and _");
    variables[flag.text.substr(0, equals)] = flag.text.substr(equals + 1);
  }
  return variables;
}

// --master-port, else an exported MASTER_PORT, else a free one.
int port(const Context& context, const launch::Flags& flags) {
  const launch::WholeNumber expected{"a port", 1, 65535};
  if (flags.has("--master-port")) return static_cast<int>(launch::whole_number(flags.value("--master-port"), expected));
  const std::string exported = context.variable("MASTER_PORT");
  if (exported.empty()) return 0;
  return static_cast<int>(launch::whole_number(
      {"ddip run, MASTER_PORT=" + launch::shown(exported) + " in the environment", exported}, expected));
}

RunOptions understand(const Context& context, const launch::Flags& flags, const Arguments& program) {
  for (const char* later : {"--hosts", "--slurm", "--mpi"}) {
    if (flags.has(later)) launch::refuse(flags.value(later), "comes in a later release; expected -n N on this machine");
  }
  if (!flags.has("--workers")) throw ConfigError("ddip run: expected -n N, the number of ranks");
  if (flags.has("--prefix") && flags.has("--no-prefix"))
    throw ConfigError("ddip run --prefix --no-prefix: expected one of the two");
  if (flags.has("--python") && flags.has("--no-store"))
    throw ConfigError("ddip run --python --no-store: --python is for the store; expected one of the two");
  RunOptions options;
  options.ranks = static_cast<int>(launch::whole_number(
      flags.value("--workers"),
      {"a number of ranks", 1, launch::kMaxWorkers, "each rank is a process, and one machine holds no more"}));
  options.prefix = flags.has("--prefix") || (!flags.has("--no-prefix") && options.ranks > 1 && context.out.terminal);
  if (flags.has("--grace")) options.grace = launch::seconds(flags.value("--grace"), "at once");
  options.environment = environment(context, flags);
  options.port = port(context, flags);
  options.store = !flags.has("--no-store");

  if (program.empty()) throw ConfigError("ddip run: expected a program: ddip run -n 2 -- python train.py");
  auto found = find_program(context, program.front());
  if (!found) {
    const std::string name = launch::shown(program.front());
    if (program.front().ends_with(".py"))
      throw ConfigError(
          fmt::format("ddip run {}: no such program; a script is started by its Python: -- python {}", name, name));
    throw ConfigError(fmt::format("ddip run {}: no such program; expected one in PATH, or a path to one", name));
  }
  options.command = program;
  options.store_at_once = is_python(*found);
  if (flags.has("--python"))
    options.python = find_python(context, flags.value("--python").text, "ddip run");
  else if (is_python(*found))
    options.python = *found;
  else {
    try {
      options.python = find_python(context, "", "ddip run");
    } catch (const ConfigError&) {
      // Said when a rank asks for the store, if ever.
    }
  }
  return options;
}

}  // namespace

int run(const Context& context, const Arguments& arguments) {
  const Split parts = split(arguments);
  const launch::Flags flags(run_flags(), parts.flags);
  return Ranks(understand(context, flags, parts.program), context).run();
}

}  // namespace ddip::app
