// The workers and warm parents of these tests are this very program: started as `python -m ddip.worker …` it speaks
// their side of the protocol and does not come to main().
#include "ddip/agent/agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "ddip/base/error.h"
#include "ddip/base/proc_file.h"
#include "ddip/base/process_scan.h"
#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"
#include "ddip/testing/run_until.h"
#include "ddip/wire/codec.h"

namespace ddip::agent {
namespace {

using namespace std::chrono_literals;
using wire::json;
using wire::Message;
using wire::Type;

// ---- the stand-in for Python

bool is_listener(int fd) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value == 1;
}

struct FakeWorker {
  int socket;
  int rank;
  uint64_t incarnation;
  std::string who;
  std::vector<int> descriptors;

  void say(Type type, uint64_t id, json body) const {
    net::send_blocking(socket, wire::encode({type, 99, 0, id, std::move(body), {}}));
  }

  void output(uint64_t cell, const std::string& text) const {
    say(Type::output, cell, {{"stream", 1}, {"bytes", json::binary(std::vector<uint8_t>(text.begin(), text.end()))}});
  }

  [[noreturn]] void live() const {
    json about = {{"pid", ::getpid()}, {"who", who}, {"descriptors", descriptors.size()}};
    about["listener"] = descriptors.size() > 2 && is_listener(descriptors[2]);
    try {
      say(Type::ready, incarnation, about);
      net::BlockingReader reader(socket);
      for (;;) {
        for (net::Parcel& parcel : reader.read_available())
          on_message(wire::decode(parcel.body), parcel.descriptors.size());
      }
    } catch (const PeerLost&) {
    }
    ::_exit(9);
  }

  void on_message(const Message& message, size_t descriptors_came) const {
    if (message.type == Type::stop) ::_exit(0);
    if (message.type != Type::execute) return say(Type::note, message.id, {{"text", wire::name_of(message.type)}});
    std::string what = message.body.value("do", "");
    if (what == "print and exit") {
      for (int line = 0; line < 1000; ++line) output(message.id, "line " + std::to_string(line) + "\n");
      ::_exit(3);
    }
    if (what == "crash") {
      [[maybe_unused]] ssize_t count = ::write(descriptors.at(1), "last words", 10);
      ::raise(SIGKILL);
    }
    if (what == "have a child") {
      pid_t child = ::fork();
      if (child == 0) {
        ::pause();
        ::_exit(0);
      }
      return say(Type::done, message.id, {{"child", child}});
    }
    if (what == "have a child apart" || what == "leave a daemon") {
      // In a session and an environment of its own; a daemon has lost its parent, too.
      int tell[2];
      if (::pipe(tell) != 0) ::_exit(10);
      pid_t child = ::fork();
      if (child == 0) {
        ::setsid();
        if (what == "leave a daemon" && ::fork() > 0) ::_exit(0);
        pid_t self = ::getpid();
        [[maybe_unused]] ssize_t count = ::write(tell[1], &self, sizeof self);
        char* const nothing[] = {nullptr};
        ::execle("/bin/sleep", "sleep", "600", nullptr, nothing);
        ::_exit(11);
      }
      pid_t known = 0;
      [[maybe_unused]] ssize_t count = ::read(tell[0], &known, sizeof known);
      if (known != child) ::waitpid(child, nullptr, 0);
      return say(Type::done, message.id, {{"child", known}});
    }
    if (what == "close") {
      ::close(socket);
      for (;;) ::pause();
    }
    if (what == "talk nonsense" || what == "not understand us") {
      // A worker of ours ends itself when its connection breaks, whoever found it broken.
      if (what == "talk nonsense") {
        net::send_blocking(socket, std::string(100, 'x'));
        pollfd end{socket, POLLIN, 0};
        ::poll(&end, 1, -1);
      } else {
        const std::string line = kEndedByUs + std::string("its connection to ddip broke (as we say)\n");
        [[maybe_unused]] ssize_t count = ::write(descriptors.at(1), line.data(), line.size());
      }
      ::raise(SIGKILL);
    }
    say(Type::done, message.id, {{"descriptors", descriptors_came}});
  }
};

// A process that becomes a worker once it is told which: its pid is known before it is asked for.
struct Unborn {
  Unborn() {
    auto [ours, theirs] = net::socket_pair();
    pid = ::fork();
    if (pid > 0) {
      socket = std::move(ours);
      return;
    }
    ::setpgid(0, 0);
    ours.reset();
    std::vector<net::Parcel> parcels;
    net::BlockingReader reader(theirs.get());
    while (parcels.empty()) parcels = reader.read_available();
    Message message = wire::decode(parcels[0].body);
    FakeWorker worker{parcels[0].descriptors.at(0).release(), message.rank, message.id, "", {}};
    worker.live();
  }
  void become(const net::Parcel& parcel) const {
    std::vector<int> numbers;
    for (const Fd& fd : parcel.descriptors) numbers.push_back(fd.get());
    net::send_blocking(socket.get(), parcel.body, numbers);
  }
  pid_t pid = 0;
  Fd socket;
};

[[noreturn]] void fake_warm_parent(int socket, const std::string& mode) {
  ::signal(SIGINT, SIG_IGN);
  std::set<pid_t> children;
  auto say = [&](Message message) { net::send_blocking(socket, wire::encode(message)); };
  if (mode == "dies at once") ::_exit(4);
  std::optional<Unborn> unborn;
  if (mode == "pid that was used before") {
    unborn.emplace();
    children.insert(unborn->pid);
    say({Type::child_exited, wire::kNoRank, 0, 0, {{"pid", unborn->pid}, {"why", "long ago"}}, {}});
  }
  net::BlockingReader reader(socket);
  try {
    json report = {{"unsafe", mode == "unsafe" ? "CUDA was initialised by an import" : ""}};
    if (mode != "never warm") say({Type::warmed, wire::kNoRank, 0, 0, std::move(report), {}});
    for (;;) {
      pollfd event{socket, POLLIN, 0};
      ::poll(&event, 1, 5);
      for (auto child = children.begin(); child != children.end();) {
        Ending ending;
        if (!reap(*child, ending)) {
          ++child;
          continue;
        }
        say({Type::child_exited,
             wire::kNoRank,
             0,
             0,
             {{"pid", *child},
              {"exit_code", ending.exit_code},
              {"signal", ending.signal},
              {"why", ddip::describe(ending)},
              {"max_rss_kib", ending.max_rss_kib}},
             {}});
        child = children.erase(child);
      }
      if (!event.revents) continue;
      for (net::Parcel& parcel : reader.read_available()) {
        Message message = wire::decode(parcel.body);
        if (mode == "cannot fork") {
          say({Type::forked, message.rank, 0, message.id, {{"pid", 0}, {"why", "fork failed: no memory"}}, {}});
          continue;
        }
        if (mode == "dies at fork") ::_exit(5);
        if (unborn) {
          unborn->become(parcel);
          say({Type::forked, message.rank, 0, message.id, {{"pid", unborn->pid}}, {}});
          continue;
        }
        pid_t pid = ::fork();
        if (pid == 0) {
          ::setpgid(0, 0);
          ::close(socket);
          FakeWorker worker{parcel.descriptors.at(0).get(),
                            message.rank,
                            message.id,
                            message.body.at("environment").value("WHO", ""),
                            {}};
          for (Fd& fd : parcel.descriptors) worker.descriptors.push_back(fd.release());
          if (mode == "child exits at once") ::_exit(6);
          worker.live();
        }
        ::setpgid(pid, pid);
        children.insert(pid);
        if (mode == "child exits at once") {
          // Its end is told before its birth.
          int status = 0;
          ::waitpid(pid, &status, 0);
          children.erase(pid);
          say({Type::child_exited,
               wire::kNoRank,
               0,
               0,
               {{"pid", pid}, {"exit_code", WEXITSTATUS(status)}, {"signal", 0}, {"why", "exit code 6"}},
               {}});
        }
        if (mode == "dies untold") ::_exit(5);
        if (mode == "slow to tell") ::usleep(100000);
        say({Type::forked, message.rank, 0, message.id, {{"pid", pid}}, {}});
      }
    }
  } catch (const PeerLost&) {
    for (pid_t child : children) ::kill(-child, SIGKILL);
  }
  ::_exit(0);
}

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> arguments;
  for (size_t at = 0; at < text.size(); at += arguments.back().size() + 1) arguments.emplace_back(text.c_str() + at);
  return arguments;
}

const char* value_of(const char* name) {
  const char* value = ::getenv(name);
  return value ? value : "";
}

// Before main(), which would run the tests.
const bool kIsFake = [] {
  std::vector<std::string> arguments = own_arguments();
  if (arguments.size() < 5 || arguments[1] != "-m" || arguments[2] != "ddip.worker") return false;
  if (arguments[3] == "warm") fake_warm_parent(std::atoi(arguments[4].c_str()), value_of("FAKE"));
  FakeWorker worker{
      3, std::atoi(arguments.at(4).c_str()), std::strtoull(arguments.at(5).c_str(), nullptr, 10), value_of("WHO"), {}};
  for (int index = 0; index < std::atoi(arguments.at(6).c_str()); ++index) worker.descriptors.push_back(3 + index);
  worker.live();
}();

// ---- the tests

class AgentTest : public testing::Test {
 protected:
  AgentTest() : marker_("agent_test." + std::to_string(::getpid()) + "." + std::to_string(::random())) {}

  ~AgentTest() override {
    agent.reset();
    // Whoever lost its agent goes by itself; a deadline, not a pause.
    for (int round = 0; round < 400 && !living().empty(); ++round) ::usleep(5000);
    EXPECT_EQ(living(), std::vector<pid_t>{}) << "processes outlived their agent";
    sweep_processes_with("DDIP_GROUP", marker_, {});
    // The agent made us the parent of orphans: none is left to the next test.
    for (int round = 0; round < 400 && ::waitpid(-1, nullptr, WNOHANG) >= 0; ++round) ::usleep(1000);
  }

  void open(Start start, const std::string& mode = "", Fd store_listener = {}, std::string python = "/proc/self/exe") {
    Options options;
    options.marker = marker_;
    options.python = python == "/proc/self/exe" ? own_path() : std::move(python);
    options.environment = {{"FAKE", mode}};
    options.start = start;
    options.store_listener = std::move(store_listener);
    options.look_around = 1ms;
    agent = std::make_unique<Agent>(loop, std::move(options),
                                    [this](Message message) { emitted.push_back(std::move(message)); });
  }

  static std::string own_path() {
    std::string path(4096, '\0');
    ssize_t count = ::readlink("/proc/self/exe", path.data(), path.size());
    path.resize(static_cast<size_t>(count));
    return path;
  }

  void spawn(int rank, uint64_t incarnation = 1) {
    agent->on_message(
        {Type::spawn, rank, 1, incarnation, {{"environment", {{"WHO", "rank " + std::to_string(rank)}}}}, {}});
  }
  void kill(int rank, uint64_t incarnation = 1) {
    agent->on_message({Type::kill, rank, 0, incarnation, {{"why", "the test wants it"}}, {}});
  }
  void execute(int rank, uint64_t cell, const std::string& what) {
    agent->on_message({Type::execute, wire::kNoRank, 1, cell, {{"ranks", {rank}}, {"do", what}}, {}});
  }

  const Message* find(Type type, int rank) {
    for (const Message& message : emitted) {
      if (message.type == type && message.rank == rank) return &message;
    }
    return nullptr;
  }
  // The first of this type from this rank; fails the test if it does not come.
  const Message& await(Type type, int rank) {
    EXPECT_TRUE(net::run_until(loop, [&] { return find(type, rank) != nullptr; }))
        << wire::name_of(type) << " of rank " << rank << " did not come";
    static const Message none{};
    const Message* found = find(type, rank);
    return found ? *found : none;
  }
  size_t count(Type type, int rank) {
    size_t number = 0;
    for (const Message& message : emitted) number += message.type == type && message.rank == rank;
    return number;
  }
  std::vector<pid_t> living() { return processes_with("DDIP_GROUP", marker_); }
  static bool alive(pid_t pid) {
    std::string text = read_proc_file("/proc/" + std::to_string(pid) + "/stat");
    size_t name = text.rfind(')');
    return name != std::string::npos && text[name + 2] != 'Z';
  }

  net::Loop loop;
  std::vector<Message> emitted;
  std::unique_ptr<Agent> agent;

 private:
  std::string marker_;
};

// Both ways of starting a worker keep the same promises.
class AgentContract : public AgentTest, public testing::WithParamInterface<Start> {
 protected:
  AgentContract() { open(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Starts, AgentContract, testing::Values(Start::fork, Start::exec),
                         [](const auto& info) { return info.param == Start::fork ? "fork" : "exec"; });

}  // namespace

TEST_P(AgentContract, worker_joins_with_its_incarnation_and_environment) {
  spawn(2, 7);
  const Message& joined = await(Type::joined, 2);
  EXPECT_EQ(joined.id, 7u);
  EXPECT_EQ(joined.body.at("who"), "rank 2");
  EXPECT_EQ(joined.body.at("descriptors"), 2) << "control socket and last words";
  pid_t pid = joined.body.at("pid").get<pid_t>();
  EXPECT_EQ(::getpgid(pid), pid) << "a process group of its own";
}

TEST_P(AgentContract, messages_are_stamped_with_the_rank_whatever_the_worker_says) {
  spawn(1);
  await(Type::joined, 1);
  execute(1, 5, "nothing");
  const Message& done = await(Type::done, 1);
  EXPECT_EQ(done.id, 5u);
  EXPECT_EQ(count(Type::done, 99), 0u);
}

TEST_P(AgentContract, message_goes_to_its_rank_or_to_all_that_it_names) {
  for (int rank : {0, 1, 2}) spawn(rank);
  for (int rank : {0, 1, 2}) await(Type::joined, rank);
  agent->on_message({Type::why, wire::kNoRank, 0, 1, {{"ranks", {0, 2, 9}}}, {}});
  await(Type::note, 0);
  await(Type::note, 2);
  agent->on_message({Type::input_reply, 1, 0, 2, json::object(), {}});
  EXPECT_EQ(await(Type::note, 1).body.at("text"), "input_reply");
  net::run_turns(loop);
  EXPECT_EQ(count(Type::note, 0) + count(Type::note, 1) + count(Type::note, 2), 3u);
}

TEST_P(AgentContract, descriptors_reach_every_rank_that_is_named) {
  for (int rank : {0, 1}) spawn(rank);
  for (int rank : {0, 1}) await(Type::joined, rank);
  Message message{Type::execute, wire::kNoRank, 1, 3, {{"ranks", {0, 1}}}, {}};
  message.descriptors.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  agent->on_message(std::move(message));
  for (int rank : {0, 1}) EXPECT_EQ(await(Type::done, rank).body.at("descriptors"), 1);
}

TEST_P(AgentContract, end_is_told_once_last_and_with_its_status) {
  spawn(0, 4);
  await(Type::joined, 0);
  execute(0, 1, "print and exit");
  const Message exited = [&] {
    const Message& message = await(Type::exited, 0);
    return Message{message.type, message.rank, message.epoch, message.id, message.body, {}};
  }();
  EXPECT_EQ(exited.id, 4u);
  EXPECT_EQ(exited.body.at("exit_code"), 3);
  EXPECT_EQ(exited.body.at("signal"), 0);
  EXPECT_EQ(exited.body.at("why"), "exit code 3");
  EXPECT_GT(exited.body.at("max_rss_kib"), 0);
  EXPECT_EQ(count(Type::output, 0), 1000u) << "all that it had written";
  EXPECT_EQ(emitted.back().type, Type::exited);
  net::Loop::Handle later;
  bool passed = false;
  later = loop.after(250ms, [&] { passed = true; });
  net::run_until(loop, [&] { return passed; });
  EXPECT_EQ(count(Type::exited, 0), 1u);
}

TEST_P(AgentContract, death_by_signal_is_named_and_its_last_words_are_kept) {
  spawn(0);
  await(Type::joined, 0);
  execute(0, 1, "crash");
  const Message& exited = await(Type::exited, 0);
  EXPECT_EQ(exited.body.at("signal"), SIGKILL);
  EXPECT_NE(exited.body.at("why").get<std::string>().find("SIGKILL"), std::string::npos);
  EXPECT_EQ(exited.body.at("last_words"), "last words");
}

TEST_P(AgentContract, children_of_a_dead_worker_are_killed) {
  spawn(0);
  await(Type::joined, 0);
  execute(0, 1, "have a child");
  pid_t child = await(Type::done, 0).body.at("child").get<pid_t>();
  EXPECT_TRUE(alive(child));
  kill(0);
  await(Type::exited, 0);
  EXPECT_TRUE(net::run_until(loop, [&] { return !alive(child); }));
}

TEST_P(AgentContract, kill_of_another_incarnation_hits_nobody) {
  spawn(0, 2);
  pid_t pid = await(Type::joined, 0).body.at("pid").get<pid_t>();
  kill(0, 1);
  kill(5, 2);
  execute(0, 1, "nothing");
  await(Type::done, 0);
  EXPECT_TRUE(alive(pid));
}

TEST_P(AgentContract, child_in_a_session_and_environment_of_its_own_goes_with_its_worker) {
  spawn(0);
  pid_t worker = await(Type::joined, 0).body.at("pid").get<pid_t>();
  execute(0, 1, "have a child apart");
  pid_t child = await(Type::done, 0).body.at("child").get<pid_t>();
  net::run_turns(loop, 30);  // some looks around
  ::kill(worker, SIGKILL);
  await(Type::exited, 0);
  EXPECT_TRUE(net::run_until(loop, [&] { return !alive(child); }));
}

TEST_P(AgentContract, daemon_outlives_the_death_of_any_rank_and_ends_with_the_group) {
  for (int rank : {0, 1}) spawn(rank);
  pid_t worker = await(Type::joined, 0).body.at("pid").get<pid_t>();
  pid_t other = await(Type::joined, 1).body.at("pid").get<pid_t>();
  execute(0, 1, "leave a daemon");
  pid_t daemon = await(Type::done, 0).body.at("child").get<pid_t>();
  net::run_turns(loop, 30);
  ::kill(other, SIGKILL);
  await(Type::exited, 1);
  net::run_turns(loop, 30);  // one that was killed needs a moment to go
  EXPECT_TRUE(alive(daemon)) << "it is not of that rank";
  ::kill(worker, SIGKILL);
  await(Type::exited, 0);
  net::run_turns(loop, 30);
  EXPECT_TRUE(alive(daemon)) << "nobody knows any more whose it is";
  agent->sweep_all();
  EXPECT_TRUE(net::run_until(loop, [&] { return !alive(daemon); }));
}

TEST_P(AgentContract, rank_can_be_spawned_again_after_its_end) {
  spawn(0, 1);
  await(Type::joined, 0);
  kill(0, 1);
  await(Type::exited, 0);
  emitted.clear();
  spawn(0, 2);
  EXPECT_EQ(await(Type::joined, 0).id, 2u);
}

TEST_P(AgentContract, worker_that_gives_up_its_socket_is_ended) {
  spawn(0);
  pid_t pid = await(Type::joined, 0).body.at("pid").get<pid_t>();
  execute(0, 1, "close");
  const Message& exited = await(Type::exited, 0);
  EXPECT_EQ(exited.body.at("signal"), SIGKILL);
  const std::string why = exited.body.at("why");
  EXPECT_TRUE(why.starts_with("ended by ddip (SIGKILL): it closed its connection to ddip and lived on")) << why;
  EXPECT_FALSE(alive(pid));
}

TEST_P(AgentContract, worker_that_is_killed_on_request_says_by_whom_and_why) {
  spawn(0);
  await(Type::joined, 0);
  kill(0);
  EXPECT_EQ(await(Type::exited, 0).body.at("why"), "ended by ddip (SIGKILL): the test wants it");
}

TEST_P(AgentContract, worker_whose_words_are_not_understood_ends_by_ddip) {
  spawn(0);
  await(Type::joined, 0);
  execute(0, 1, "talk nonsense");
  const std::string why = await(Type::exited, 0).body.at("why");
  EXPECT_TRUE(why.starts_with("ended by ddip (SIGKILL): its connection to ddip broke (")) << why;
}

TEST_P(AgentContract, worker_that_ended_itself_gives_the_reason) {
  spawn(0);
  await(Type::joined, 0);
  execute(0, 1, "not understand us");
  const Message& exited = await(Type::exited, 0);
  EXPECT_EQ(exited.body.at("why"), "ended by ddip (SIGKILL): its connection to ddip broke (as we say)");
  EXPECT_EQ(exited.body.at("last_words"), "") << "it is said once";
}

TEST_P(AgentContract, stop_is_an_orderly_end) {
  for (int rank : {0, 1}) spawn(rank);
  for (int rank : {0, 1}) await(Type::joined, rank);
  for (int rank : {0, 1}) agent->on_message({Type::stop, rank, 0, 0, json::object(), {}});
  for (int rank : {0, 1}) EXPECT_EQ(await(Type::exited, rank).body.at("exit_code"), 0);
}

TEST_P(AgentContract, everything_ends_with_the_agent) {
  for (int rank : {0, 1, 2}) spawn(rank);
  for (int rank : {0, 1, 2}) await(Type::joined, rank);
  EXPECT_GE(living().size(), 3u);
  agent.reset();  // the fixture looks for survivors
}

TEST_P(AgentContract, sweep_leaves_nobody) {
  for (int rank : {0, 1}) spawn(rank);
  for (int rank : {0, 1}) await(Type::joined, rank);
  agent->sweep_all();
  EXPECT_EQ(living(), std::vector<pid_t>{});
}

TEST_P(AgentContract, rank_zero_alone_gets_the_listener_of_the_store) {
  agent.reset();
  open(GetParam(), "", net::listen_on_loopback(0).first);
  for (int rank : {0, 1}) spawn(rank);
  EXPECT_EQ(await(Type::joined, 0).body.at("listener"), true);
  EXPECT_EQ(await(Type::joined, 1).body.at("listener"), false);
  EXPECT_EQ(await(Type::joined, 1).body.at("descriptors"), 2);
}

TEST_F(AgentTest, python_that_is_not_there_is_the_workers_end) {
  for (Start start : {Start::exec, Start::fork}) {
    emitted.clear();
    open(start, "", {}, "/no/such/python");
    spawn(0, 3);
    const Message& exited = await(Type::exited, 0);
    EXPECT_EQ(exited.id, 3u);
    EXPECT_NE(exited.body.at("why").get<std::string>().find("cannot start /no/such/python"), std::string::npos);
    EXPECT_EQ(count(Type::exited, 0), 1u);
  }
}

TEST_F(AgentTest, warming_begins_before_anyone_asks) {
  open(Start::fork);
  agent->warm_up();
  EXPECT_GT(agent->describe().at("warm_parent"), 0);
  EXPECT_EQ(agent->describe().at("start"), "fork");
  agent->warm_up();
  EXPECT_EQ(living().size(), 1u) << "only one of them";
}

TEST_F(AgentTest, unsafe_warm_parent_means_exec_and_a_note) {
  open(Start::fork, "unsafe");
  spawn(0);
  EXPECT_EQ(await(Type::joined, 0).body.at("who"), "rank 0");
  EXPECT_NE(await(Type::host_note, wire::kNoRank).body.at("text").get<std::string>().find("CUDA was initialised"),
            std::string::npos);
  EXPECT_EQ(agent->describe().at("start"), "exec");
}

TEST_F(AgentTest, warm_parent_that_dies_before_it_is_warm_ends_those_who_wait) {
  open(Start::fork, "dies at once");
  spawn(0, 1);
  spawn(1, 2);
  for (int rank : {0, 1}) {
    const Message& exited = await(Type::exited, rank);
    EXPECT_EQ(exited.id, static_cast<uint64_t>(rank + 1));
    EXPECT_NE(exited.body.at("why").get<std::string>().find("the warm parent did not start"), std::string::npos);
  }
}

TEST_F(AgentTest, warm_parent_that_dies_at_the_fork_ends_the_unborn) {
  open(Start::fork, "dies at fork");
  spawn(0);
  EXPECT_NE(await(Type::exited, 0).body.at("why").get<std::string>().find("died before forking it"), std::string::npos);
}

TEST_F(AgentTest, fork_that_fails_is_told_with_its_reason) {
  open(Start::fork, "cannot fork");
  spawn(0, 8);
  const Message& exited = await(Type::exited, 0);
  EXPECT_EQ(exited.id, 8u);
  EXPECT_EQ(exited.body.at("why"), "fork failed: no memory");
}

TEST_F(AgentTest, end_that_comes_before_the_birth_is_not_lost) {
  open(Start::fork, "child exits at once");
  spawn(0);
  EXPECT_EQ(await(Type::exited, 0).body.at("exit_code"), 6);
}

TEST_F(AgentTest, end_of_an_earlier_process_is_not_that_of_a_worker_with_its_number) {
  open(Start::fork, "pid that was used before");
  spawn(0);
  await(Type::joined, 0);
  execute(0, 1, "nothing");
  await(Type::done, 0);
  EXPECT_EQ(find(Type::exited, 0), nullptr);
}

TEST_F(AgentTest, kill_before_the_worker_has_started_cancels_it) {
  open(Start::fork, "never warm");
  spawn(0, 5);
  kill(0, 5);
  EXPECT_EQ(await(Type::exited, 0).id, 5u);
  EXPECT_EQ(await(Type::exited, 0).body.at("why"), "cancelled before it started");
}

TEST_F(AgentTest, kill_while_the_fork_is_under_way_is_not_lost) {
  open(Start::fork, "slow to tell");
  spawn(0, 1);
  EXPECT_TRUE(net::run_until(loop, [&] { return living().size() == 2; }));  // it lives, but its pid is not known yet
  kill(0, 1);
  EXPECT_EQ(await(Type::exited, 0).body.at("signal"), SIGKILL);
}

TEST_F(AgentTest, worker_whose_warm_parent_died_before_telling_of_it_is_kept) {
  open(Start::fork, "dies untold");
  spawn(0);
  pid_t pid = await(Type::joined, 0).body.at("pid").get<pid_t>();
  EXPECT_NE(await(Type::host_note, wire::kNoRank).body.at("text").get<std::string>().find("workers live on"),
            std::string::npos);
  EXPECT_TRUE(alive(pid));
  execute(0, 1, "print and exit");
  EXPECT_EQ(await(Type::exited, 0).body.at("exit_code"), 3);
}

TEST_F(AgentTest, workers_outlive_their_warm_parent_and_their_end_is_still_told) {
  open(Start::fork);
  spawn(0);
  pid_t pid = await(Type::joined, 0).body.at("pid").get<pid_t>();
  pid_t warm = agent->describe().at("warm_parent").get<pid_t>();
  ::kill(warm, SIGKILL);
  EXPECT_NE(await(Type::host_note, wire::kNoRank).body.at("text").get<std::string>().find("workers live on"),
            std::string::npos);
  EXPECT_TRUE(alive(pid));
  execute(0, 1, "print and exit");
  EXPECT_EQ(await(Type::exited, 0).body.at("exit_code"), 3) << "we are their parent now";
  emitted.clear();
  spawn(0, 2);
  await(Type::joined, 0);
  EXPECT_NE(agent->describe().at("warm_parent").get<pid_t>(), warm) << "a new one was warmed";
}

}  // namespace ddip::agent
