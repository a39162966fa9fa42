#include "ddip/worker/warm_parent.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <iterator>
#include <new>

#include "ddip/base/error.h"
#include "ddip/base/proc_file.h"
#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"
#include "ddip/wire/codec.h"

namespace ddip::worker {
namespace {

using wire::json;
using wire::Message;
using wire::Type;

// What a worker of these tests does with its life.
[[noreturn]] void live(Birth birth) {
  std::string what = birth.environment.value("DO", "");
  if (what == "exit") ::_exit(10 + birth.rank);
  if (what == "kill") ::raise(SIGKILL);
  if (what == "have a child" && ::fork() == 0) {
    for (;;) ::pause();
  }
  if (!birth.descriptors.empty()) {
    struct sigaction action{};
    ::sigaction(SIGINT, nullptr, &action);
    std::string text = "rank " + std::to_string(birth.rank) + " of incarnation " + std::to_string(birth.incarnation) +
                       " with " + std::to_string(birth.descriptors.size()) +
                       (action.sa_handler == SIG_DFL ? "" : " deaf to SIGINT") +
                       (::getpgid(0) == ::getpid() ? "" : " in a stranger's group");
    net::send_blocking(birth.descriptors[0].get(), text);
  }
  for (;;) ::pause();
}

bool alive(pid_t pid) {
  std::string text = read_proc_file("/proc/" + std::to_string(pid) + "/stat");
  size_t name = text.rfind(')');
  return name != std::string::npos && text[name + 2] != 'Z';
}

bool dies(pid_t pid) {
  for (int round = 0; round < 1000 && alive(pid); ++round) ::usleep(5000);
  return !alive(pid);
}

// A warm parent in a process of its own, and the agent's end of its socket.
class WarmParentTest : public testing::Test {
 protected:
  WarmParentTest() {
    void* shared = ::mmap(nullptr, sizeof *forks_fail, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    forks_fail = new (shared) std::atomic<bool>(false);
    auto [ours, theirs] = net::socket_pair();
    agent = std::move(ours);
    pid = ::fork();
    if (pid == 0) {
      agent.reset();
      WarmParent parent(std::move(theirs), [this] { return *forks_fail ? -1 : ::fork(); });
      try {
        parent.say_warmed({{"seconds", 1.5}});
        if (auto birth = parent.serve()) live(std::move(*birth));
      } catch (const ProtocolError&) {
        ::_exit(3);
      }
      ::_exit(0);
    }
    reader = std::make_unique<net::BlockingReader>(agent.get());
  }

  ~WarmParentTest() override {
    agent.reset();
    if (pid > 0) ::waitpid(pid, nullptr, 0);
    ::munmap(forks_fail, sizeof *forks_fail);
  }

  void send(const Message& message) {
    std::vector<int> numbers;
    for (const Fd& fd : message.descriptors) numbers.push_back(fd.get());
    net::send_blocking(agent.get(), wire::encode(message), numbers);
  }

  Fd ask_fork(int rank, uint64_t incarnation, const std::string& what, bool with_socket = true) {
    auto [ours, theirs] = net::socket_pair();
    Message message{Type::fork, rank, 0, incarnation, {{"environment", {{"DO", what}}}}, {}};
    if (with_socket) message.descriptors.push_back(std::move(theirs));
    send(message);
    return std::move(ours);
  }

  Message next() {
    while (received.empty()) {
      pollfd event{agent.get(), POLLIN, 0};
      if (::poll(&event, 1, 5000) != 1) throw TimedOut("the warm parent says nothing");
      for (net::Parcel& parcel : reader->read_available()) received.push_back(wire::decode(parcel.body));
    }
    Message message = std::move(received.front());
    received.pop_front();
    return message;
  }

  Message await(Type type) {
    for (;;) {
      Message message = next();
      if (message.type == type) return message;
    }
  }

  int exit_status() {
    int status = 0;
    ::waitpid(pid, &status, 0);
    pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  Fd agent;
  pid_t pid = 0;
  std::atomic<bool>* forks_fail = nullptr;  // shared with the process under test
  std::unique_ptr<net::BlockingReader> reader;
  std::deque<Message> received;
};

std::string read_text(const Fd& socket) {
  net::BlockingReader reader(socket.get());
  for (;;) {
    for (net::Parcel& parcel : reader.read_available()) return parcel.body;
  }
}

bool sees_end(const Fd& socket) {
  pollfd event{socket.get(), POLLIN, 0};
  char byte;
  return ::poll(&event, 1, 5000) == 1 && ::recv(socket.get(), &byte, 1, 0) == 0;
}

}  // namespace

TEST_F(WarmParentTest, says_first_that_it_is_warm) {
  Message warmed = next();
  EXPECT_EQ(warmed.type, Type::warmed);
  EXPECT_EQ(warmed.body.at("seconds"), 1.5);
}

TEST_F(WarmParentTest, worker_is_born_with_what_it_needs) {
  Fd socket = ask_fork(2, 9, "live");
  Message forked = await(Type::forked);
  EXPECT_EQ(forked.rank, 2);
  EXPECT_EQ(forked.id, 9u);
  EXPECT_EQ(read_text(socket), "rank 2 of incarnation 9 with 1");
  pid_t child = forked.body.at("pid").get<pid_t>();
  EXPECT_TRUE(alive(child));
  EXPECT_EQ(::getpgid(child), child);
}

TEST_F(WarmParentTest, end_of_a_child_is_told_with_status_and_usage) {
  ask_fork(3, 1, "exit", false);
  pid_t child = await(Type::forked).body.at("pid").get<pid_t>();
  Message exited = await(Type::child_exited);
  EXPECT_EQ(exited.body.at("pid"), child);
  EXPECT_EQ(exited.body.at("exit_code"), 13);
  EXPECT_EQ(exited.body.at("signal"), 0);
  EXPECT_EQ(exited.body.at("why"), "exit code 13");
  EXPECT_GT(exited.body.at("max_rss_kib"), 0);
  EXPECT_GE(exited.body.at("user_seconds"), 0);

  ask_fork(3, 2, "kill", false);
  exited = await(Type::child_exited);
  EXPECT_EQ(exited.body.at("signal"), SIGKILL);
}

TEST_F(WarmParentTest, children_and_theirs_die_when_the_agent_is_gone) {
  std::vector<pid_t> children;
  std::vector<Fd> sockets;
  for (int rank : {0, 1, 2}) {
    sockets.push_back(ask_fork(rank, 1, rank == 1 ? "have a child" : "live"));
    children.push_back(await(Type::forked).body.at("pid").get<pid_t>());
  }
  for (const Fd& socket : sockets) read_text(socket);  // all are up
  agent.reset();
  EXPECT_EQ(exit_status(), 0);
  for (pid_t child : children) EXPECT_TRUE(dies(child));
  // The grandchild held a copy of rank 1's socket.
  for (const Fd& socket : sockets) EXPECT_TRUE(sees_end(socket));
}

TEST_F(WarmParentTest, sibling_holds_nothing_of_another) {
  // Sent in one go, so that the second request lies unread in the parent when the first is forked.
  Fd first = ask_fork(0, 1, "live"), second = ask_fork(1, 1, "live"), third = ask_fork(2, 1, "live");
  std::vector<pid_t> children;
  for (int count = 0; count < 3; ++count) children.push_back(await(Type::forked).body.at("pid").get<pid_t>());
  for (const Fd* socket : {&first, &second, &third}) read_text(*socket);
  ::kill(children[2], SIGKILL);
  EXPECT_TRUE(sees_end(third)) << "held by a sibling or by the parent";
  ::kill(children[1], SIGKILL);
  EXPECT_TRUE(sees_end(second));
  EXPECT_TRUE(alive(children[0]));
}

TEST_F(WarmParentTest, interrupt_is_not_its_business) {
  EXPECT_EQ(next().type, Type::warmed);
  ::kill(pid, SIGINT);
  Fd socket = ask_fork(0, 1, "live");
  EXPECT_EQ(read_text(socket), "rank 0 of incarnation 1 with 1");
}

TEST_F(WarmParentTest, unexpected_message_ends_it) {
  send({Type::execute, 0, 0, 0, json::object(), {}});
  EXPECT_EQ(exit_status(), 3);
}

TEST_F(WarmParentTest, failed_fork_is_told) {
  *forks_fail = true;
  ask_fork(4, 6, "live");
  Message forked = await(Type::forked);
  EXPECT_EQ(forked.rank, 4);
  EXPECT_EQ(forked.id, 6u);
  EXPECT_EQ(forked.body.at("pid"), 0);
  EXPECT_EQ(forked.body.at("why"), "fork failed");
}

}  // namespace ddip::worker
