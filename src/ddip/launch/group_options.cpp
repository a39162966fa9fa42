#include "ddip/launch/group_options.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <set>

#include "ddip/base/error.h"
#include "ddip/launch/apps.h"
#include "ddip/launch/group_flags.h"
#include "ddip/launch/rank_list.h"

namespace ddip::launch {
namespace {

// A flag that says what to do, and the flags that mean something beside it.
struct Mode {
  std::string flag;
  Action action;
  std::string does;
  std::set<std::string> beside;
  bool takes_any_shape = false;
};

const std::array<Mode, 5>& modes() {
  static const std::array<Mode, 5> table = {{
      {"--kill", Action::Kill, "stops a group", {"--name", "--timeout", "--client", "--verbose"}},
      {"--info", Action::Info, "only describes a group", {"--name", "--timeout", "--client", "--verbose"}},
      {"--attach", Action::Attach, "joins a running group as it is", {"--timeout", "--client", "--verbose"}},
      {"--rebuild", Action::Rebuild, "re-makes process groups", {"--name", "--timeout", "--client", "--verbose"}},
      {"--restart", Action::Restart, "starts a group anew", {}, true},
  }};
  return table;
}

void refuse_conflict(const Flags& flags, const Mode& mode, const std::string& other) {
  const std::string a = flags.spelling(mode.flag), b = flags.spelling(other);
  throw ConfigError(flags.command() + " " + a + " " + b + ": " + a + " " + mode.does + ", so " + b +
                    " has no meaning beside it; expected one of the two");
}

Action action_of(const Flags& flags) {
  Action action = Action::Start;
  for (const Mode& mode : modes()) {
    if (!flags.has(mode.flag)) continue;
    for (const Mode& other : modes()) {
      if (other.flag != mode.flag && flags.has(other.flag)) refuse_conflict(flags, mode, other.flag);
    }
    for (const std::string& flag : group_flag_names()) {
      const bool allowed = mode.takes_any_shape || flag == mode.flag || mode.beside.contains(flag);
      if (!allowed && flags.has(flag)) refuse_conflict(flags, mode, flag);
    }
    action = mode.action;
  }
  return action;
}

// Some ranks of a group that is there: its shape is no question any more.
std::string ranks_to_restart(const Flags& flags, Action action) {
  const FlagText ranks = flags.value("--ranks");
  if (action != Action::Restart) refuse(ranks, "says which workers -r starts anew; expected -r beside it");
  const Mode some{"--ranks",
                  action,
                  "starts some workers of a group anew",
                  {"--restart", "--name", "--timeout", "--client", "--verbose"}};
  for (const std::string& flag : group_flag_names()) {
    if (flag != some.flag && flags.has(flag) && !some.beside.contains(flag)) refuse_conflict(flags, some, flag);
  }
  check_rank_list(ranks.text, flags.command() + " " + flags.spelling("--ranks"));
  return ranks.text;
}

void refuse_what_comes_later(const Flags& flags) {
  const std::array<std::pair<std::string, std::string>, 2> later = {
      {{"--hosts", "groups over several hosts come"}, {"--slurm", "Slurm jobs come"}}};
  for (const auto& [flag, what] : later) {
    if (flags.has(flag)) refuse(flags.value(flag), what + " in a later release; expected -n or -g on this machine");
  }
}

std::string backend(const FlagText& flag) {
  if (flag.text == "mpi")
    refuse(flag, "MPI is for programs started by mpirun, where ddip.comm() finds it; expected auto, shm, nccl or gloo");
  if (flag.text == "ddip") refuse(flag, "that is torch's name for it; expected shm");
  return one_of(flag, {"auto", "shm", "nccl", "gloo"});
}

std::string gpus_place(const Flags& flags) { return flags.command() + " " + flags.spelling("--gpus"); }

// A GPU list's spelling; which GPUs are there is asked later, where they are known.
std::string gpu_list(const Flags& flags) {
  const FlagText flag = flags.value("--gpus");
  if (flag.text != "all") parse_ranges(flag.text, gpus_place(flags), "GPU");
  return flag.text;
}

// The variables that the plan sets for each rank, and what to use instead.
std::string instead_of_env(const std::string& name) {
  if (name == "MASTER_PORT") return "use --master-port";
  if (name == "OMP_NUM_THREADS") return "use --threads";
  if (name == "CUDA_VISIBLE_DEVICES") return "use -g";
  static const std::set<std::string> own = {"RANK",
                                            "LOCAL_RANK",
                                            "WORLD_SIZE",
                                            "LOCAL_WORLD_SIZE",
                                            "MASTER_ADDR",
                                            "GLOO_SOCKET_IFNAME",
                                            "TORCHELASTIC_USE_AGENT_STORE",
                                            "TORCHELASTIC_RESTART_COUNT",
                                            "CUDA_DEVICE_ORDER",
                                            "DDIP_GROUP"};
  return own.contains(name) ? "leave it out" : "";
}

std::vector<std::pair<std::string, std::string>> environment(const std::vector<FlagText>& flags) {
  std::vector<std::pair<std::string, std::string>> variables;
  std::set<std::string> names;
  for (const FlagText& flag : flags) {
    const std::size_t equals = flag.text.find('=');
    const std::string name = flag.text.substr(0, equals);
    const bool readable = equals != std::string::npos && flag.text.find('\0') == std::string::npos;
    if (!readable || !is_variable_name(name)) refuse(flag, "expected K=V, K of letters, digits and _");
    const std::string instead = instead_of_env(name);
    if (!instead.empty()) refuse(flag, "ddip sets " + name + " for each worker; " + instead);
    if (!names.insert(name).second) refuse(flag, name + " is given twice; expected each variable once");
    variables.emplace_back(name, flag.text.substr(equals + 1));
  }
  return variables;
}

// At most one plain word, and only from a shell: the group's name.
std::string name_of(const Flags& flags) {
  std::string name = flags.has("--name")     ? group_name(flags.value("--name"))
                     : flags.has("--attach") ? group_name(flags.value("--attach"))
                                             : "";
  const bool words_are_names = flags.command().starts_with("ddip ");
  for (const std::string& word : flags.words()) {
    const FlagText place{flags.command() + " " + shown(word), word};
    if (!words_are_names) refuse(place, "expected a flag; to name the group: --name NAME");
    if (!name.empty()) refuse(place, "expected one group's name, and " + shown(name) + " is given already");
    name = group_name(place);
  }
  return name;
}

int workers(const FlagText& flag) {
  return static_cast<int>(whole_number(
      flag, {"a number of workers", 1, kMaxWorkers, "each worker is a process, and one machine holds no more"}));
}

}  // namespace

GroupOptions parse_group_flags(const std::vector<std::string>& args, const std::string& command) {
  const Flags flags(group_flags(command), args);
  refuse_what_comes_later(flags);
  GroupOptions options;
  options.action = action_of(flags);
  options.name = name_of(flags);
  options.verbose = flags.has("--verbose");
  if (flags.has("--ranks")) options.ranks = ranks_to_restart(flags, options.action);

  if (flags.has("--gpus")) {
    options.gpus = gpu_list(flags);
    options.gpus_where = gpus_place(flags);
  }
  if (flags.has("--workers")) options.workers = workers(flags.value("--workers"));
  if (flags.has("--threads")) {
    options.threads = static_cast<int>(whole_number(flags.value("--threads"), {"a number of threads", 1, 1024}));
  }
  if (flags.has("--app")) options.app = one_of(flags.value("--app"), app_names());
  if (flags.has("--backend")) options.backend = backend(flags.value("--backend"));

  if (flags.has("--timeout")) options.timeout = seconds(flags.value("--timeout"), "");
  if (flags.has("--settle")) options.settle = seconds(flags.value("--settle"), "at once");
  if (flags.has("--grace")) options.grace = seconds(flags.value("--grace"), "");
  if (flags.has("--idle")) options.idle = seconds(flags.value("--idle"), "never");
  if (flags.has("--on-exit")) {
    options.on_exit = one_of(flags.value("--on-exit"), {"keep", "stop"}) == "keep" ? OnExit::Keep : OnExit::Stop;
  }
  if (flags.has("--client")) options.client = group_name(flags.value("--client"));

  if (flags.has("--start")) {
    options.start = one_of(flags.value("--start"), {"fork", "exec"}) == "fork" ? StartMethod::Fork : StartMethod::Exec;
  }
  if (flags.has("--env")) options.env = environment(flags.values("--env"));
  if (flags.has("--python")) options.python = flags.value("--python").text;
  if (flags.has("--seed")) {
    const std::uint64_t largest = std::numeric_limits<std::int64_t>::max();  // Python and torch take it as a long
    options.seed = whole_number(flags.value("--seed"), {"a seed", 0, largest});
  }
  if (flags.has("--master-port")) {
    options.master_port = static_cast<std::uint16_t>(whole_number(flags.value("--master-port"), {"a port", 1, 65535}));
  }
  if (flags.has("--gc")) options.gc = one_of(flags.value("--gc"), {"on", "off"}) == "on";
  return options;
}

std::string group_help(const std::string& command) { return help_text(group_flags(command)); }

std::vector<std::string> group_flag_names() {
  std::vector<std::string> names;
  for (const FlagSection& section : group_flags("%makedip").sections) {
    for (const Flag& flag : section.flags) names.push_back(flag.long_name);
  }
  return names;
}

}  // namespace ddip::launch
