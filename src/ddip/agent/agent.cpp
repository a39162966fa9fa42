#include "ddip/agent/agent.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ddip/agent/memory_watch.h"
#include "ddip/agent/orphans.h"
#include "ddip/base/check.h"
#include "ddip/base/log.h"
#include "ddip/base/pidfd.h"
#include "ddip/base/process_scan.h"
#include "ddip/net/local_socket.h"
#include "ddip/wire/channel.h"

namespace ddip::agent {
namespace {

using namespace std::chrono_literals;
using wire::json;
using wire::Message;
using wire::Type;

constexpr const char* kMarkerName = "DDIP_GROUP";
constexpr auto kReapPatience = 100ms;
// The warm parent reaps a worker and tells us how it ended; if it does not, the pidfd alone is proof enough after this
// long. Its word comes within a millisecond, except on a machine that is loaded many times over.
constexpr auto kWordPatience = 500ms;
constexpr size_t kLastWordsBytes = 64u << 10;
const json kUnborn = {{"why", "the warm parent died before forking it"}};

struct Worker {
  int rank = 0;
  uint32_t incarnation = 0;
  pid_t pid = 0;               // 0: being forked
  bool condemned = false;      // killed before its pid was known
  std::string killed_because;  // by us; empty: not
  bool exec = false;
  MemoryWatch memory;
  std::unique_ptr<wire::Channel> channel;
  std::optional<json> ending;  // how it ended, once that is known
  Fd last_words;               // a memory file it writes to when it crashes
  Fd pidfd;
  net::Loop::Handle died;
  net::Loop::Handle patience;
};

json to_json(const Ending& ending) {
  return {{"exit_code", ending.exit_code},           {"signal", ending.signal},
          {"why", ddip::describe(ending)},           {"user_seconds", ending.user_seconds},
          {"system_seconds", ending.system_seconds}, {"max_rss_kib", ending.max_rss_kib}};
}

std::string read_last_words(const Fd& file) {
  std::string text(kLastWordsBytes, '\0');
  ssize_t count = file ? ::pread(file.get(), text.data(), text.size(), 0) : 0;
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

// A worker that has to end itself leaves the reason as its last line; taken out of `words`.
std::string take_own_reason(std::string& words) {
  const size_t begin = words.rfind(kEndedByUs);
  if (begin == std::string::npos || (begin > 0 && words[begin - 1] != '\n')) return "";
  std::string line = words.substr(begin, words.find('\n', begin) - begin);
  words.resize(begin);
  return line;
}

}  // namespace

struct Agent::Core : std::enable_shared_from_this<Agent::Core> {
  Core(net::Loop& loop, Options options, Emit emit) : loop(loop), options(std::move(options)), emit(std::move(emit)) {}

  // ---- warm parent

  void start_warm_parent() {
    if (warm_channel || options.start == Start::exec) return;
    auto [ours, theirs] = net::socket_pair();
    Command command;
    command.argv = {options.python, "-m", "ddip.worker", "warm", "3"};
    command.environment = options.environment;
    // Nothing parallel may run in the parent: a thread pool does not survive a fork. Workers restore the user's values.
    for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
      command.environment[name] = "1";
    // Otherwise torch.cuda.is_available() alone makes CUDA unusable after a fork.
    command.environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1";
    command.environment[kMarkerName] = options.marker;
    command.folder = options.folder;
    command.descriptors = {theirs.get()};
    warm_pid = start(command);
    warm_pidfd = open_pidfd(warm_pid);
    log("warm parent {} started", warm_pid);
    std::weak_ptr<Core> weak = weak_from_this();
    warm_channel = std::make_unique<wire::Channel>(loop, std::move(ours),
                                                   wire::Channel::Events{[weak](Message message) {
                                                                           if (auto self = weak.lock())
                                                                             self->on_warm_message(std::move(message));
                                                                         },
                                                                         [weak](const std::string& reason) {
                                                                           if (auto self = weak.lock())
                                                                             self->on_warm_silent(reason);
                                                                         },
                                                                         nullptr});
    warm_died = loop.when_readable(warm_pidfd.get(), [weak] {
      if (auto self = weak.lock()) self->on_warm_gone("it died");
    });
  }

  void on_warm_message(Message message) {
    switch (message.type) {
      case Type::warmed: {
        warmed = true;
        warm_report = message.body;
        std::string unsafe = message.body.value("unsafe", "");
        if (!unsafe.empty()) {
          note(fmt::format("workers are started by exec: forking is not safe here ({})", unsafe));
          options.start = Start::exec;
        }
        std::vector<Message> waiting = std::move(waiting_spawns);
        waiting_spawns.clear();
        for (Message& spawn : waiting) spawn_worker(spawn);
        return;
      }
      case Type::forked: {
        auto found = workers.find(message.rank);
        if (found == workers.end() || found->second.incarnation != message.id) return;
        pid_t pid = message.body.at("pid").get<pid_t>();
        if (pid <= 0)
          return worker_gone(message.rank, found->second.incarnation,
                             {{"why", message.body.value("why", "fork failed")}});
        if (found->second.pid == pid) return;  // it was faster with its own `ready`
        return adopt(found->second, pid);
      }
      case Type::child_exited: {
        pid_t pid = message.body.at("pid").get<pid_t>();
        for (auto& [rank, worker] : workers) {
          if (worker.pid == pid) {
            return worker_gone(rank, worker.incarnation, message.body);
          }
        }
        // It can be one that is being forked; else its number may come back for another process.
        if (fork_under_way()) early_exits[pid] = message.body;
        return;
      }
      default: log("warm parent sent {}, ignored", wire::name_of(message.type));
    }
  }

  // Its socket closes a moment before it can be reaped, and how it ended is worth that moment.
  void on_warm_silent(const std::string& reason) {
    std::weak_ptr<Core> weak = weak_from_this();
    warm_patience = loop.after(kReapPatience, [weak, reason] {
      if (auto self = weak.lock()) self->on_warm_gone(reason);
    });
  }

  void on_warm_gone(const std::string& reason) {
    if (!warm_channel) return;
    log("warm parent {} is gone: {}", warm_pid, reason);
    warm_channel.reset();
    warm_died.cancel();
    warm_patience.cancel();
    Ending ending;
    std::string how;
    if (reap(warm_pid, ending)) {
      how = ddip::describe(ending);
    } else {
      ::kill(warm_pid, SIGKILL);
      how = fmt::format("{}its connection broke ({})", kEndedByUs, reason);
    }
    warm_pid = 0;
    early_exits.clear();
    bool was_warm = std::exchange(warmed, false);
    // Workers live on: they are ours now (subreaper). Those that were never forked must be started anew.
    std::vector<Message> waiting = std::move(waiting_spawns);
    waiting_spawns.clear();
    for (Message& spawn : waiting)
      emit_exit(spawn.rank, static_cast<uint32_t>(spawn.id), {{"why", "the warm parent did not start: " + how}});
    // One that was forked, though nobody lived to tell us, has its socket open and says itself who it is (`ready`).
    std::vector<std::pair<int, uint32_t>> unborn;
    for (auto& [rank, worker] : workers) {
      if (worker.pid == 0 && !worker.channel->open()) unborn.emplace_back(rank, worker.incarnation);
    }
    for (auto [rank, incarnation] : unborn) worker_gone(rank, incarnation, kUnborn);
    if (was_warm && unborn.empty())
      note("the warm parent is gone (" + how + "); workers live on, the next start warms a new one");
  }

  // ---- workers

  void spawn_worker(Message& message) {
    if (options.start == Start::fork) {
      if (!warm_channel) {
        try {
          start_warm_parent();
        } catch (const std::exception& error) {
          return emit_exit(message.rank, static_cast<uint32_t>(message.id), {{"why", error.what()}});
        }
      }
      if (!warmed) {
        waiting_spawns.push_back(std::move(message));
        return;
      }
    }
    DDIP_CHECK(!workers.contains(message.rank), "spawn of a rank that still has a process");
    auto [ours, theirs] = net::socket_pair();
    Worker& worker = workers[message.rank];
    worker.rank = message.rank;
    worker.incarnation = static_cast<uint32_t>(message.id);
    worker.exec = options.start == Start::exec;
    open_channel(worker, std::move(ours));
    std::vector<Fd> descriptors;
    descriptors.push_back(std::move(theirs));
    worker.last_words = Fd(::memfd_create("ddip-last-words", MFD_CLOEXEC));
    descriptors.push_back(worker.last_words.duplicate());
    if (message.rank == 0 && options.store_listener) descriptors.push_back(options.store_listener.duplicate());
    if (worker.exec) {
      exec_worker(worker, message, descriptors);
    } else {
      Message fork{Type::fork,
                   message.rank,
                   message.epoch,
                   message.id,
                   {{"environment", message.body.at("environment")}},
                   std::move(descriptors)};
      warm_channel->send(fork);
    }
  }

  void exec_worker(Worker& worker, const Message& message, const std::vector<Fd>& descriptors) {
    Command command;
    command.argv = {options.python,
                    "-m",
                    "ddip.worker",
                    "exec",
                    std::to_string(worker.rank),
                    std::to_string(worker.incarnation),
                    std::to_string(descriptors.size())};
    command.environment = options.environment;
    for (const auto& [name, value] : message.body.at("environment").items())
      command.environment[name] = value.get<std::string>();
    command.environment[kMarkerName] = options.marker;
    command.folder = options.folder;
    for (const Fd& fd : descriptors) command.descriptors.push_back(fd.get());
    try {
      adopt(worker, start(command));
    } catch (const std::exception& error) {
      worker_gone(worker.rank, worker.incarnation, {{"why", error.what()}});
    }
  }

  void open_channel(Worker& worker, Fd socket) {
    std::weak_ptr<Core> weak = weak_from_this();
    int rank = worker.rank;
    uint32_t incarnation = worker.incarnation;
    worker.channel = std::make_unique<wire::Channel>(
        loop, std::move(socket),
        wire::Channel::Events{[weak, rank, incarnation](Message message) {
                                if (auto self = weak.lock())
                                  self->on_worker_message(rank, incarnation, std::move(message));
                              },
                              [weak, rank, incarnation](const std::string& reason) {
                                if (auto self = weak.lock()) self->on_worker_silent(rank, incarnation, reason);
                              },
                              nullptr});
  }

  void adopt(Worker& worker, pid_t pid) {
    worker.pid = pid;
    auto early = early_exits.extract(pid);
    if (!fork_under_way()) early_exits.clear();
    if (early) return worker_gone(worker.rank, worker.incarnation, std::move(early.mapped()));
    if (worker.condemned) kill_tree(pid);
    worker.pidfd = open_pidfd(pid);
    worker.memory.look(pid);
    std::weak_ptr<Core> weak = weak_from_this();
    int rank = worker.rank;
    uint32_t incarnation = worker.incarnation;
    auto died = [weak, rank, incarnation] {
      if (auto self = weak.lock()) self->on_worker_died(rank, incarnation);
    };
    if (worker.pidfd) {
      worker.died = loop.when_readable(worker.pidfd.get(), died);
    } else {
      loop.post(died);  // already gone
    }
  }

  // The warm parent was asked for one and has not told us its pid.
  bool fork_under_way() const {
    return std::ranges::any_of(workers, [](const auto& one) { return one.second.pid == 0 && !one.second.exec; });
  }

  void on_worker_message(int rank, uint32_t incarnation, Message message) {
    message.rank = rank;
    if (message.type == Type::ready) {
      // The warm parent's word may still be on its way, or it died before it could give it.
      Worker* worker = current(rank, incarnation);
      pid_t pid = message.body.value("pid", 0);
      if (worker && worker->pid == 0 && std::ranges::count(descendants_of(::getpid()), pid)) adopt(*worker, pid);
      message.type = Type::joined;
      message.id = incarnation;
    }
    look_around_soon();
    emit(std::move(message));
  }

  // The control socket closed but the process may live (it exec'd something, say): a worker nobody can talk to is of
  // no use, so it is ended; its death then takes the ordinary way.
  void on_worker_silent(int rank, uint32_t incarnation, const std::string& reason) {
    Worker* worker = current(rank, incarnation);
    if (!worker) return;
    if (worker->ending) return announce_gone(rank, incarnation);
    if (worker->pid == 0) {
      if (!warm_channel) worker_gone(rank, incarnation, kUnborn);
      return;
    }
    log("rank {} (pid {}): control socket {}", rank, worker->pid, reason);
    // If we closed it, the worker ends itself as soon as it sees that.
    if (reason != net::kClosedByPeer) worker->killed_because = fmt::format("its connection to ddip broke ({})", reason);
    std::weak_ptr<Core> weak = weak_from_this();
    worker->patience = loop.after(kReapPatience, [weak, rank, incarnation] {
      auto self = weak.lock();
      if (!self) return;
      Worker* worker = self->current(rank, incarnation);
      if (!worker) return;
      if (worker->killed_because.empty())
        worker->killed_because =
            "it closed its connection to ddip and lived on, out of reach (it closed a descriptor that was not its own, "
            "or became another program by exec)";
      ::kill(worker->pid, SIGKILL);
    });
  }

  void on_worker_died(int rank, uint32_t incarnation) {
    Worker* worker = current(rank, incarnation);
    if (!worker || worker->ending) return;
    worker->died.cancel();
    Ending ending;
    if (reap(worker->pid, ending)) return worker_gone(rank, incarnation, to_json(ending));
    // Not our child: the warm parent's word follows in a moment.
    std::weak_ptr<Core> weak = weak_from_this();
    worker->patience = loop.after(kWordPatience, [weak, rank, incarnation] {
      auto self = weak.lock();
      if (!self) return;
      Worker* worker = self->current(rank, incarnation);
      if (!worker) return;
      Ending late;
      json how = reap(worker->pid, late) ? to_json(late) : json{{"why", "died (its parent could not say how)"}};
      self->worker_gone(rank, incarnation, how);
    });
  }

  // The process is gone. What it wrote before is still in its socket, so the end is announced when that has been read
  // to its end; a child that inherited the socket may hold it open, hence the patience.
  void worker_gone(int rank, uint32_t incarnation, json how) {
    Worker* worker = current(rank, incarnation);
    if (!worker || worker->ending) return;
    if (worker->pid > 0) end_children(*worker);
    std::string words = read_last_words(worker->last_words);
    if (how.value("signal", 0) == SIGKILL) {
      if (std::string why = why_killed(*worker, words, how.value("max_rss_kib", 0L)); !why.empty()) how["why"] = why;
    }
    how["pid"] = worker->pid;
    how["last_words"] = std::move(words);
    worker->ending = std::move(how);
    worker->died.cancel();
    if (!worker->channel->open()) return announce_gone(rank, incarnation);
    std::weak_ptr<Core> weak = weak_from_this();
    worker->patience = loop.after(kReapPatience, [weak, rank, incarnation] {
      if (auto self = weak.lock()) self->announce_gone(rank, incarnation);
    });
  }

  // Whose SIGKILL it was; empty if that is not known.
  std::string why_killed(const Worker& worker, std::string& last_words, long max_rss_kib) {
    if (!worker.killed_because.empty()) return kEndedByUs + worker.killed_because;
    if (std::string why = take_own_reason(last_words); !why.empty()) return why;
    std::string why = worker.memory.why_killed();
    if (!why.empty() && max_rss_kib > 0) why += fmt::format("; it had {} MiB", max_rss_kib / 1024);
    // What the kernel has counted now is told: of the next rank it would be a mistake.
    for (auto& [other, one] : workers) one.memory.look(one.pid);
    return why;
  }

  // Loader workers and subprocesses: its process group, and those in a session of their own, which its death has made
  // our children.
  void end_children(const Worker& worker) {
    ::kill(-worker.pid, SIGKILL);
    orphans.end_those_of(worker.rank, own_children());
  }

  // Nobody tells us of a new orphan, but workers that are idle leave none behind.
  void look_around_soon() {
    if (looking) return;
    std::weak_ptr<Core> weak = weak_from_this();
    looking = loop.after(options.look_around, [weak] {
      auto self = weak.lock();
      if (!self) return;
      self->looking.cancel();
      for (auto& [rank, worker] : self->workers) worker.memory.look(worker.pid);  // it may have been moved
      if (self->orphans.look(self->own_children())) self->look_around_soon();
    });
  }

  std::set<pid_t> own_children() const {
    std::set<pid_t> known = {warm_pid};
    for (const auto& [rank, worker] : workers) known.insert(worker.pid);
    return known;
  }

  void announce_gone(int rank, uint32_t incarnation) {
    Worker* worker = current(rank, incarnation);
    if (!worker) return;
    json how = std::move(*worker->ending);
    workers.erase(rank);
    emit_exit(rank, incarnation, std::move(how));
  }

  void emit_exit(int rank, uint32_t incarnation, json how) {
    emit({Type::exited, rank, 0, incarnation, std::move(how), {}});
  }

  Worker* current(int rank, uint32_t incarnation) {
    auto found = workers.find(rank);
    return found != workers.end() && found->second.incarnation == incarnation ? &found->second : nullptr;
  }

  void kill_worker(int rank, uint32_t incarnation, const std::string& why) {
    for (auto waiting = waiting_spawns.begin(); waiting != waiting_spawns.end(); ++waiting) {
      if (waiting->rank == rank && waiting->id == incarnation) {
        waiting_spawns.erase(waiting);
        return emit_exit(rank, incarnation, {{"why", "cancelled before it started"}});
      }
    }
    Worker* worker = current(rank, incarnation);
    if (!worker) return;
    worker->killed_because = why;
    if (worker->pid > 0)
      kill_tree(worker->pid);
    else
      worker->condemned = true;
  }

  // While it lives, all that is below it can still be seen.
  static void kill_tree(pid_t pid) {
    std::vector<pid_t> below = descendants_of(pid);
    ::kill(-pid, SIGKILL);
    ::kill(pid, SIGKILL);
    for (pid_t one : below) ::kill(one, SIGKILL);
  }

  void to_workers(const Message& message) {
    look_around_soon();
    std::string bytes = wire::encode(message);
    if (message.rank != wire::kNoRank) return to_worker(message.rank, bytes, message.descriptors);
    for (const json& rank : message.body.at("ranks")) to_worker(rank.get<int>(), bytes, message.descriptors);
  }

  void to_worker(int rank, const std::string& bytes, const std::vector<Fd>& descriptors) {
    auto found = workers.find(rank);
    if (found != workers.end() && found->second.channel) found->second.channel->send_encoded(bytes, descriptors);
  }

  void note(const std::string& text) { emit({Type::host_note, wire::kNoRank, 0, 0, {{"text", text}}, {}}); }

  net::Loop& loop;
  Options options;
  Emit emit;
  pid_t warm_pid = 0;
  Fd warm_pidfd;
  std::unique_ptr<wire::Channel> warm_channel;
  net::Loop::Handle warm_died;
  net::Loop::Handle warm_patience;
  bool warmed = false;
  json warm_report = json::object();
  std::map<int, Worker> workers;
  std::vector<Message> waiting_spawns;  // until the warm parent is warm
  // As their subreaper we also get the status of workers whose warm parent died.
  Orphans orphans;
  net::Loop::Handle looking;
  std::map<pid_t, json> early_exits;  // a child that ended before `forked` told us its pid
};

Agent::Agent(net::Loop& loop, Options options, Emit emit)
    : core_(std::make_shared<Core>(loop, std::move(options), std::move(emit))) {}

Agent::~Agent() = default;

void Agent::on_message(Message message) {
  switch (message.type) {
    case Type::spawn: return core_->spawn_worker(message);
    case Type::kill:
      return core_->kill_worker(message.rank, static_cast<uint32_t>(message.id),
                                message.body.value("why", "somebody asked for it"));
    default: return core_->to_workers(message);
  }
}

void Agent::warm_up() { core_->start_warm_parent(); }

void Agent::sweep_all() {
  for (pid_t pid : descendants_of(::getpid())) ::kill(pid, SIGKILL);
  sweep_processes_with(kMarkerName, core_->options.marker, {});
}

json Agent::describe() const {
  return {{"warm_parent", core_->warm_pid},
          {"start", core_->options.start == Start::fork ? "fork" : "exec"},
          {"warm", core_->warm_report}};
}

}  // namespace ddip::agent
