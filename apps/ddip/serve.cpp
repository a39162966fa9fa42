#include "serve.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <iterator>
#include <thread>

#include "ddip/agent/agent.h"
#include "ddip/base/error.h"
#include "ddip/base/log.h"
#include "ddip/base/process_scan.h"
#include "ddip/client/client.h"
#include "ddip/client/group_folder.h"
#include "ddip/coordinator/coordinator.h"
#include "ddip/launch/apps.h"
#include "ddip/launch/devices.h"
#include "ddip/launch/group_options.h"
#include "ddip/launch/local/plan.h"
#include "ddip/net/local_socket.h"

namespace ddip::app {
namespace {

namespace fs = std::filesystem;
using wire::json;

constexpr size_t kJournalsKept = 3;    // of one name
constexpr int kLooksPerQuestion = 50;  // at the lock, 2 ms apart
constexpr int kMostLooks = 5000;
constexpr size_t kDeadGroupsKept = 20;  // names; a script's group is named after its process id, so names pile up

// The pipe to whoever started us; closed once the group is ready or has failed.
class Status {
 public:
  explicit Status(Fd pipe) : pipe_(std::move(pipe)) {}
  void say(const json& line) {
    std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    if (pipe_) [[maybe_unused]]
      ssize_t written = ::write(pipe_.get(), text.data(), text.size());
  }
  void close() { pipe_.reset(); }
  int fd() const { return pipe_.get(); }

 private:
  Fd pipe_;
};

// Standard streams go where nobody is surprised by them, everything else that was inherited is closed: ipykernel kills
// what stays in its process group, and a held descriptor would keep somebody's pipe open for ever.
Fd detach() {
  if (::fork() != 0) ::_exit(0);
  Fd status(::fcntl(1, F_DUPFD_CLOEXEC, 3));
  ::dup2(status.get(), 3);
  ::syscall(SYS_close_range, 4u, ~0u, 0u);
  status.release();
  ::fcntl(3, F_SETFD, FD_CLOEXEC);
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {0, 1, 2}) ::dup2(null, fd);
  ::close(null);
  ::umask(077);
  for (int signal : {SIGPIPE, SIGXFSZ, SIGHUP}) ::signal(signal, SIG_IGN);
  return Fd(3);
}

// Secrets of ours never land in a core file. Workers get the user's own limit back, which is returned.
std::string forbid_core_files() {
  rlimit core{};
  ::getrlimit(RLIMIT_CORE, &core);
  std::string users = std::to_string(static_cast<int64_t>(core.rlim_cur));
  core.rlim_cur = 0;
  ::setrlimit(RLIMIT_CORE, &core);
  return users;
}

// One whose door does not open is on its way in or out.
bool is_here_to_stay(const client::GroupFolder& folder) {
  try {
    const std::string phase = client::Client(folder, "").welcome().value("phase", "");
    return phase != "stopping" && phase != "stopped";
  } catch (const std::exception&) {
    return false;
  }
}

Fd open_lock(const client::GroupFolder& folder) {
  net::require_private_folder(folder.path);
  Fd lock(::open(folder.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) throw_errno("open " + folder.lock().string());
  return lock;
}

bool is_still_there(const Fd& lock, const client::GroupFolder& folder) {
  struct stat ours{}, theirs{};
  return ::fstat(lock.get(), &ours) == 0 && ::stat(folder.lock().c_str(), &theirs) == 0 && ours.st_ino == theirs.st_ino;
}

// Whoever asks is_running() holds the lock for a moment: one look is not enough to call the group running. A former
// group of this name that stops is waited for: it removes its folder, the lock in it too, before it lets go.
Fd take_lock(const client::GroupFolder& folder) {
  Fd lock = open_lock(folder);
  for (int attempt = 1;; ++attempt) {
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
      if (is_still_there(lock, folder)) return lock;
      lock = open_lock(folder);
      continue;
    }
    if (attempt % kLooksPerQuestion == 0 && is_here_to_stay(folder))
      throw ConfigError("group " + folder.name() + " is already running");
    if (attempt == kMostLooks) throw ConfigError("group " + folder.name() + " is stopping, and takes long; try again");
    ::usleep(2000);
  }
}

// A coordinator that was killed may have left stopped processes behind: nobody could end them then.
void sweep_predecessor(const client::GroupFolder& folder, const std::string& marker) {
  std::ifstream file(folder.marker());
  std::string old;
  if (std::getline(file, old) && !old.empty() && old != marker) sweep_processes_with("DDIP_GROUP", old, {});
  std::ofstream(folder.marker()) << marker << "\n";
}

std::string make_key(const client::GroupFolder& folder) {
  std::string key(32, '\0');
  if (::getrandom(key.data(), key.size(), 0) != 32) throw_errno("getrandom");
  Fd file(::open(folder.key().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file || ::write(file.get(), key.data(), key.size()) != 32) throw_errno("write " + folder.key().string());
  return key;
}

void forget_oldest_groups(const fs::path& state, const fs::path& runtime) {
  std::vector<std::pair<fs::file_time_type, fs::path>> dead;
  for (const fs::directory_entry& entry : fs::directory_iterator(state)) {
    if (!client::is_running(client::group_folder(runtime, entry.path().filename().string())))
      dead.emplace_back(entry.last_write_time(), entry.path());
  }
  std::sort(dead.begin(), dead.end());
  std::error_code ignored;
  for (size_t index = 0; index + kDeadGroupsKept < dead.size(); ++index) fs::remove_all(dead[index].second, ignored);
}

// state/NAME/STAMP: a new journal for each life of a group; the last few stay readable.
fs::path make_journal_folder(const fs::path& state, const fs::path& runtime, const std::string& name) {
  fs::create_directories(state.parent_path());
  net::require_private_folder(state);
  forget_oldest_groups(state, runtime);
  net::require_private_folder(state / name);
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(state / name)) old.push_back(entry.path());
  std::sort(old.begin(), old.end());
  for (size_t index = 0; index + kJournalsKept <= old.size(); ++index) fs::remove_all(old[index]);
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return state / name / fmt::format("{:012}.{:09}", now.tv_sec, now.tv_nsec);
}

std::vector<launch::Device> find_devices(const json& config, const agent::Environment& environment) {
  std::optional<std::string> visible;
  if (auto found = environment.find("CUDA_VISIBLE_DEVICES"); found != environment.end()) visible = found->second;
  if (config.contains("test_devices"))
    return launch::written_devices(config.at("test_devices").get<std::string>(), visible)->devices();
  return launch::nvidia_devices(visible)->devices();
}

void run_group(const json& config, Status& status) {
  client::GroupFolder folder =
      client::group_folder(config.at("runtime").get<std::string>(), config.at("name").get<std::string>());
  net::require_private_folder(folder.path.parent_path());
  Fd lock = take_lock(folder);
  int log_file = ::open(folder.log().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (log_file >= 0) {
    ::dup2(log_file, 2);
    ::close(log_file);
  }
  std::string marker = config.at("marker").get<std::string>();
  sweep_predecessor(folder, marker);

  auto environment = config.at("environment").get<agent::Environment>();
  environment["DDIP_CORE_LIMIT"] = forbid_core_files();
  launch::GroupOptions flags =
      launch::parse_group_flags(config.at("flags").get<std::vector<std::string>>(), config.value("command", "ddip up"));
  launch::local::Plan plan =
      launch::local::plan(flags, find_devices(config, environment),
                          static_cast<int>(std::max(1u, std::thread::hardware_concurrency())), environment);
  auto [store_listener, port] = net::listen_on_loopback(plan.master_port.value_or(0));

  coordinator::Options options;
  options.name = folder.name();
  for (int rank = 0; rank < plan.world_size; ++rank) {
    json variables = launch::local::worker_environment(plan, rank, {static_cast<uint16_t>(port), 0});
    variables["DDIP_RANK"] = std::to_string(rank);
    variables["DDIP_NAME"] = folder.name();
    variables["DDIP_APP"] = launch::find_app(flags.app) != nullptr ? flags.app : "";
    variables["DDIP_BACKEND"] = plan.backend;
    variables["DDIP_GC"] = flags.gc ? "1" : "0";
    auto device = launch::local::device_of(plan, rank);
    variables["DDIP_DEVICE"] = device ? fmt::format("cuda:{}", *device) : "cpu";
    variables["DDIP_SEED"] = std::to_string(flags.seed ? *flags.seed : config.at("seed").get<uint64_t>());
    options.environments.push_back(std::move(variables));
  }
  options.start_timeout = flags.timeout.count();
  options.settle = flags.settle.count();
  options.idle = flags.idle.count();
  options.grace = flags.grace ? flags.grace->count() : 0;
  options.owner = flags.on_exit == launch::OnExit::Stop ? config.value("owner", 0) : 0;
  options.key = make_key(folder);
  options.journal_folder =
      make_journal_folder(config.at("state").get<std::string>(), folder.path.parent_path(), folder.name());
  options.facts = {{"sentence", plan.sentence},
                   {"backend", plan.backend},
                   {"port", port},
                   {"threads", plan.threads},
                   {"gpus", plan.gpus},
                   {"python", config.at("python")},
                   {"folder", config.at("folder")},
                   {"on_exit", flags.on_exit == launch::OnExit::Stop ? "stop" : "keep"},
                   {"seed", flags.seed ? *flags.seed : config.at("seed").get<uint64_t>()},
                   {"settle", options.settle}};
  options.listener = net::listen_at(folder.socket());

  net::Loop loop;
  net::Loop::Handle starter_gone;
  coordinator::Coordinator* door = nullptr;
  agent::Options agent_options;
  agent_options.marker = marker;
  agent_options.python = config.at("python").get<std::string>();
  agent_options.folder = config.at("folder").get<std::string>();
  // The warm parent sees what --env says too: it imports what the workers will use.
  agent_options.environment = environment;
  for (const auto& [name, value] : flags.env) agent_options.environment[name] = value;
  if (const launch::App* app = launch::find_app(flags.app)) {
    agent_options.environment.try_emplace("DDIP_PRELOAD", app->preload);
  }
  agent_options.start = flags.start == launch::StartMethod::Fork ? agent::Start::fork : agent::Start::exec;
  agent_options.store_listener = std::move(store_listener);
  agent::Agent agent(loop, std::move(agent_options),
                     [&](wire::Message message) { door->on_agent(std::move(message)); });
  coordinator::Coordinator coordinator(
      loop, std::move(options),
      {[&](wire::Message message) { agent.on_message(std::move(message)); }, [&] { return agent.describe(); },
       [&] {
         starter_gone.cancel();
         status.say({{"ready", {{"name", folder.name()}, {"sentence", plan.sentence}}}});
         status.close();
       },
       [&](const std::string& why) {
         status.say({{"error", why}, {"timed_out", why.find("did not join within") != std::string::npos}});
         status.close();
       },
       [&] { loop.stop(); }});
  door = &coordinator;

  sigset_t signals;
  ::sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT}) ::sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  Fd asked(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  net::Loop::Handle on_signal = loop.when_readable(asked.get(), [&] {
    signalfd_siginfo info;
    while (::read(asked.get(), &info, sizeof info) == sizeof info)
      coordinator.stop(fmt::format("signal {}", info.ssi_signo));
  });

  // A start that nobody waits for any more (stop was pressed, the kernel died) must not leave a group behind: the end
  // of a pipe without a reader is in error.
  starter_gone = loop.when_readable(status.fd(), [&] {
    starter_gone.cancel();
    coordinator.stop("whoever started it is gone");
  });
  status.say({{"progress", plan.sentence}});
  loop.post([&] { coordinator.start(); });  // inside the loop: a start that fails at once must be able to stop it
  loop.run();
  agent.sweep_all();
  for (const fs::path& path : {folder.socket(), folder.key(), folder.marker()}) fs::remove(path);
  std::error_code ignored;
  fs::remove_all(folder.path, ignored);  // last: whoever sees the folder gone knows that everything is
}

}  // namespace

int serve() {
  std::string text((std::istreambuf_iterator<char>(std::cin)), {});
  Status status(detach());
  try {
    run_group(json::parse(text), status);
    return 0;
  } catch (const std::exception& error) {
    log("{}", error.what());
    status.say({{"error", error.what()}});
    return 1;
  }
}

}  // namespace ddip::app
