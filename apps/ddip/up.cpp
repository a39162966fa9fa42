#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "command.h"
#include "ddip/base/error.h"
#include "ddip/client/start.h"
#include "ddip/launch/devices.h"
#include "ddip/launch/group_flags.h"
#include "ddip/launch/group_options.h"
#include "ddip/launch/local/plan.h"
#include "ddip/net/local_socket.h"
#include "describe_group.h"
#include "find_group.h"
#include "python.h"
#include "stop_group.h"
#include "tables.h"

namespace ddip::app {

using Clock = std::chrono::steady_clock;
using wire::json;

namespace {

constexpr const char* kDefaultName = "default";

volatile sig_atomic_t interrupted = 0;

struct Wish {
  launch::GroupOptions options;
  launch::local::Plan plan;
  std::vector<std::string> flags;  // for the coordinator, which reads them again
  std::string name;
  std::string python;
  bool has_shape = false;
  bool as_json = false;
};

// The workers' environment: ours, without what belongs to another launcher or notebook.
std::map<std::string, std::string> worker_environment(const Context& context) {
  std::map<std::string, std::string> environment = context.environment;
  for (const char* name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MPLBACKEND", "JPY_PARENT_PID", "PYTHONPATH"})
    environment.erase(name);
  if (std::string path = python_path(context); !path.empty()) environment["PYTHONPATH"] = path;
  return environment;
}

std::optional<std::string> test_devices(const Context& context) {
  auto found = context.environment.find("DDIP_TEST_DEVICES");
  return found == context.environment.end() ? std::nullopt : std::optional(found->second);
}

std::vector<launch::Device> devices(const Context& context) {
  std::optional<std::string> visible;
  if (auto found = context.environment.find("CUDA_VISIBLE_DEVICES"); found != context.environment.end())
    visible = found->second;
  if (auto written = test_devices(context)) return launch::written_devices(*written, visible)->devices();
  return launch::nvidia_devices(visible)->devices();
}

// Everything that can be refused is refused here, before any process starts.
Wish understand(const Context& context, const Arguments& arguments) {
  Wish wish;
  for (const std::string& argument : arguments) {
    if (argument == "--json")
      wish.as_json = true;
    else
      wish.flags.push_back(argument);
  }
  try {
    wish.options = launch::parse_group_flags(wish.flags, "ddip up");
  } catch (const launch::HelpRequested&) {
    throw launch::HelpRequested{help_text(up_flags())};
  }
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  wish.plan = launch::local::plan(wish.options, devices(context), cores, context.environment);
  wish.name = wish.options.name.empty() ? kDefaultName : wish.options.name;
  wish.has_shape = wish.options.workers.has_value() || wish.options.gpus.has_value();
  std::erase(wish.flags, "-r");
  std::erase(wish.flags, "--restart");
  return wish;
}

json config_for(const Context& context, const Wish& wish) {
  uint32_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed) throw_errno("getrandom");
  json config = {{"name", wish.name},
                 {"flags", wish.flags},
                 {"command", "ddip up"},
                 {"environment", worker_environment(context)},
                 {"folder", std::filesystem::current_path().string()},
                 {"python", wish.python},
                 {"owner", ::getppid()},  // --on-exit stop: the group ends with the shell; we are gone in a moment
                 {"runtime", context.runtime.string()},
                 {"state", context.state.string()},
                 {"seed", seed >> 1}};
  if (auto written = test_devices(context)) config["test_devices"] = *written;
  return config;
}

struct GaveUp {};

void start(const Context& context, Wish wish) {
  wish.python = find_python(context, wish.options.python, "ddip up");
  require_app(context, wish.python, wish.options.app, "ddip up");
  if (wish.plan.master_port) net::listen_on_loopback(*wish.plan.master_port);  // taken: say so now
  net::require_private_folder(context.runtime);
  if (::geteuid() == 0) fmt::print(stderr, "ddip: you are root; so are your workers\n");
  // Ctrl-C while the workers start must not leave half a group behind.
  struct sigaction action{};
  action.sa_handler = [](int) { interrupted = 1; };
  for (int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
  const client::GroupFolder folder = client::group_folder(context.runtime, wish.name);
  try {
    client::start_group({context.program.string(), config_for(context, wish), wish.options.timeout.count()},
                        [&](const std::string& line) {
                          if (interrupted != 0) throw GaveUp{};
                          if (!line.empty() && context.err.terminal)
                            fmt::print(stderr, "{}\n", context.err.dim("starting " + line));
                        });
  } catch (const GaveUp&) {
    kill_group(folder);
    throw PeerLost("ddip up: interrupted; nothing was left behind");
  } catch (const ConfigError& error) {
    throw PeerLost(std::string("ddip up: ") + error.what());  // what we asked for was right, so this is a failure
  }
}

int report(const Context& context, const Wish& wish, const std::string& action, Clock::time_point begun) {
  auto client = connect(find_group(context, "ddip up", wish.name));
  json about = client->welcome();
  if (wish.as_json) {
    about["action"] = action;
    return print_json(about);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
  fmt::print("{} {}: {} ({}); it {}\n", context.out.bold("group " + wish.name), action, about.value("sentence", ""),
             duration(seconds), life_of(about));
  if (wish.options.verbose)
    fmt::print("{}  seed {} + rank, {} each\n", describe_group(about, context.out), about.value("seed", 0),
               counted(about.value("threads", size_t{1}), "thread"));
  return 0;
}

bool has_this_app(const json& about, const Wish& wish) {
  const std::string now = about.value("app", "");
  return wish.options.app.empty() || wish.options.app == (now.empty() ? "none" : now);
}

bool has_this_shape(const json& about, const Wish& wish) {
  const bool shape =
      !wish.has_shape || (about.at("world_size") == wish.plan.world_size && about.at("gpus") == json(wish.plan.gpus));
  return shape && has_this_app(about, wish);
}

[[noreturn]] void refuse_other_shape(const json& about, const Wish& wish) {
  std::vector<std::string> cells;
  for (const json& cell : about.at("cells"))
    cells.push_back(fmt::format("cell {} ({})", cell.value("cell", 0), one_line(cell.value("line", ""))));
  const std::string app = has_this_app(about, wish)      ? ""
                          : about.value("app", "") == "" ? ", no app"
                                                         : ", -a " + about.value("app", "");
  throw ConfigError(fmt::format(
      "ddip up {}: this group runs with {}{} (running cells: {}); expected the same shape, another NAME, or -r to "
      "replace it and its variables",
      wish.name, about.value("sentence", ""), app, cells.empty() ? "none" : fmt::format("{}", fmt::join(cells, ", "))));
}

}  // namespace

launch::FlagTable up_flags() {
  launch::FlagTable table = launch::group_flags("ddip up");
  table.purpose = "start a group of workers; it stays when this shell ends";
  for (launch::FlagSection& section : table.sections) {
    for (launch::Flag& flag : section.flags) {
      if (flag.long_name == "--name") flag.help = "the group's name, as NAME (default: default)";
      if (flag.long_name == "--on-exit") flag.help = "when the shell that started it ends (default keep)";
      if (flag.long_name == "--python") flag.help = "the workers' Python (default: of this program's environment)";
    }
  }
  table.sections.push_back({"form", {kJsonFlag}});
  table.examples = {"ddip up -n 4                # four CPU workers, group 'default'",
                    "ddip up train -g 3,1        # group 'train': rank 0 on GPU 3, rank 1 on GPU 1",
                    "ddip up train -r            # the same workers anew, empty"};
  return table;
}

int up(const Context& context, const Arguments& arguments) {
  const auto begun = Clock::now();
  const Wish wish = understand(context, arguments);
  using launch::Action;
  Arguments name = {wish.name};
  if (wish.as_json) name.push_back("--json");
  if (wish.options.action == Action::Kill) return down(context, {wish.name});
  if (wish.options.action == Action::Info) return info(context, name);
  if (wish.options.action == Action::Attach) return report(context, wish, "is running", begun);

  const client::GroupFolder folder = client::group_folder(context.runtime, wish.name);
  if (!client::is_running(folder)) {
    start(context, wish);
    return report(context, wish, "started", begun);
  }
  auto client = connect(folder);
  const json about = client->welcome();
  const bool same = has_this_shape(about, wish);
  const bool restart = wish.options.action == Action::Restart;
  if (same && !restart) return report(context, wish, "is running already", begun);
  if (same) {
    client->request(wire::Type::restart, {{"ranks", json::array()}},
                    std::chrono::milliseconds(static_cast<int64_t>(wish.options.timeout.count() * 1000)));
    return report(context, wish, "restarted, empty", begun);
  }
  if (!restart && about.value("user_cells", 1) != 0) refuse_other_shape(about, wish);
  client.reset();
  // Refused before the old one is gone.
  require_app(context, find_python(context, wish.options.python, "ddip up"), wish.options.app, "ddip up");
  stop_group(folder, 10);
  start(context, wish);
  return report(context, wish, "started", begun);
}

}  // namespace ddip::app
