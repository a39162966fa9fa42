#include "ddip/coordinator/door.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"
#include "ddip/testing/run_until.h"

namespace ddip::coordinator {
namespace fs = std::filesystem;
namespace {

using namespace std::chrono_literals;
using wire::json;
using wire::Message;
using wire::Type;

const std::string kKey(32, 'k');

json hello_body(const std::string& key = kKey) {
  return {
      {"role", "client"}, {"client", "tester"}, {"key", json::binary(std::vector<uint8_t>(key.begin(), key.end()))}};
}

std::string hello(json body = hello_body()) {
  return wire::encode({Type::hello, wire::kNoRank, 0, 1, std::move(body), {}});
}

// What the peer sees on its socket now.
enum class Sees { nothing, bytes, end };
Sees look(const Fd& socket) {
  char byte;
  ssize_t count = ::recv(socket.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  if (count == 0 || (count < 0 && errno == ECONNRESET)) return Sees::end;
  return count < 0 ? Sees::nothing : Sees::bytes;
}

// Until it goes, this process can open so many descriptors more.
class FewDescriptors {
 public:
  explicit FewDescriptors(size_t spare) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = 256;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) filling_.emplace_back(fd);
    filling_.resize(filling_.size() - spare);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<Fd> filling_;
};

class DoorTest : public testing::Test {
 protected:
  DoorTest() {
    std::string pattern = testing::TempDir() + "ddip-door-XXXXXX";
    folder = ::mkdtemp(pattern.data());
  }
  ~DoorTest() override {
    door.reset();
    fs::remove_all(folder);
  }

  void open(DoorLimits limits = {}) {
    door = std::make_unique<Door>(
        loop, net::listen_at(path()), kKey,
        Door::Events{[this](Session& session, Message message) {
                       entered.push_back(message.body.value("client", ""));
                       session.channel->send({Type::welcome, wire::kNoRank, 0, message.id, json::object(), {}});
                     },
                     [this](Session&, Message message) {
                       messages.push_back(wire::name_of(message.type));
                       sizes.push_back(message.body.dump().size());
                     },
                     [this](Session&, const std::string& reason) { left.push_back(reason); }, [](Session&) {}},
        limits);
  }

  fs::path path() const { return folder / "socket"; }
  Fd connect() { return net::connect_to(path()); }
  bool until(const std::function<bool()>& happened, std::chrono::milliseconds patience = 10s) {
    return net::run_until(loop, happened, patience);
  }
  double cpu_seconds_of(std::chrono::milliseconds time) {
    auto cpu = [] {
      timespec now{};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
    };
    double before = cpu();
    net::Loop::Handle later = loop.after(time, [&] { loop.stop(); });
    loop.run();
    return cpu() - before;
  }
  bool until_end(const Fd& socket) {
    return until([&] { return look(socket) != Sees::nothing; }) && look(socket) == Sees::end;
  }

  net::Loop loop;
  fs::path folder;
  std::unique_ptr<Door> door;
  std::vector<std::string> entered, messages, left;
  std::vector<size_t> sizes;
};

}  // namespace

TEST_F(DoorTest, limits_are_those_of_the_design) {
  EXPECT_EQ(DoorLimits{}.handshake, 5s);
  EXPECT_EQ(DoorLimits{}.pending, 32u);
}

TEST_F(DoorTest, right_key_comes_in_speaks_and_leaves_once) {
  open();
  Fd client = connect();
  net::send_blocking(client.get(), hello());
  net::send_blocking(client.get(), wire::encode({Type::info, wire::kNoRank, 0, 2, json::object(), {}}));
  EXPECT_TRUE(until([&] { return messages.size() == 1; }));
  EXPECT_EQ(entered, std::vector<std::string>{"tester"});
  EXPECT_EQ(messages, std::vector<std::string>{"info"});
  ASSERT_EQ(door->sessions().size(), 1u);
  EXPECT_EQ(door->sessions().front().pid, ::getpid());
  client.reset();
  EXPECT_TRUE(until([&] { return !left.empty(); }));
  net::run_turns(loop);
  EXPECT_EQ(left, std::vector<std::string>{"closed by peer"});
  EXPECT_TRUE(door->sessions().empty());
}

TEST_F(DoorTest, wrong_hello_is_closed_and_told_nothing) {
  open();
  json not_binary = hello_body(), no_role = hello_body(), other_role = hello_body(), role_number = hello_body(),
       client_number = hello_body();
  not_binary["key"] = kKey;
  no_role.erase("role");
  other_role["role"] = "worker";
  role_number["role"] = 7;
  client_number["client"] = 7;
  std::string one_bit = kKey;
  one_bit.back() = static_cast<char>(one_bit.back() ^ 1);
  const std::string attempts[] = {
      hello(hello_body(one_bit)),
      hello(hello_body(kKey.substr(1))),
      hello(hello_body("")),
      hello(hello_body(kKey + "k")),
      hello(not_binary),
      hello(no_role),
      hello(other_role),
      hello(role_number),
      hello(client_number),
      hello(json::object()),
      wire::encode({Type::execute, wire::kNoRank, 0, 1, hello_body(), {}}),  // an early message
      "not a message at all, twenty bytes and more"};
  for (const std::string& attempt : attempts) {
    Fd client = connect();
    net::send_blocking(client.get(), attempt);
    EXPECT_TRUE(until_end(client)) << &attempt - attempts;
  }
  EXPECT_TRUE(entered.empty());
  EXPECT_TRUE(messages.empty());
  EXPECT_TRUE(door->sessions().empty());
  EXPECT_TRUE(left.empty()) << "it was never in";
}

TEST_F(DoorTest, malformed_frames_are_closed_and_told_nothing) {
  open();
  std::string flipped = net::encode_frame(hello(), 0);
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  std::string too_long = net::encode_frame(std::string(net::kBodyCapBeforeHello + 1, 'x'), 0);
  for (const std::string& bytes : {flipped, too_long, std::string(16, '\0'), std::string("GET / HTTP/1.1\r\n\r\n")}) {
    Fd client = connect();
    ASSERT_GT(::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    EXPECT_TRUE(until_end(client));
  }
  EXPECT_TRUE(entered.empty());
}

TEST_F(DoorTest, large_message_is_taken_only_inside) {
  open();
  Fd client = connect();
  net::send_blocking(client.get(), hello());
  EXPECT_TRUE(until([&] { return entered.size() == 1; }));
  std::thread sender([&] {
    net::send_blocking(client.get(),
                       wire::encode({Type::execute, 0, 0, 2, {{"code", std::string(2u << 20, 'c')}}, {}}));
  });
  EXPECT_TRUE(until([&] { return messages.size() == 1; }));
  sender.join();
  EXPECT_GT(sizes.at(0), 2u << 20);
}

TEST_F(DoorTest, silence_ends_after_the_handshake_time) {
  open({.handshake = 50ms, .pending = 32});
  Fd silent = connect(), half = connect();
  std::string part = net::encode_frame(hello(), 0).substr(0, 30);
  ASSERT_GT(::send(half.get(), part.data(), part.size(), 0), 0);
  auto begun = std::chrono::steady_clock::now();
  EXPECT_TRUE(until_end(silent));
  EXPECT_TRUE(until_end(half));
  EXPECT_GE(std::chrono::steady_clock::now() - begun, 40ms);
  EXPECT_TRUE(entered.empty());
}

TEST_F(DoorTest, handshake_time_does_not_end_those_who_are_in) {
  open({.handshake = 30ms, .pending = 32});
  Fd client = connect();
  net::send_blocking(client.get(), hello());
  EXPECT_TRUE(until([&] { return entered.size() == 1; }));
  net::Loop::Handle later;
  bool passed = false;
  later = loop.after(80ms, [&] { passed = true; });
  EXPECT_TRUE(until([&] { return passed; }));
  EXPECT_EQ(door->sessions().size(), 1u);
}

TEST_F(DoorTest, longest_silent_gives_way_when_all_places_are_taken) {
  open({.handshake = 1h, .pending = 4});
  std::vector<Fd> silent;
  for (int count = 0; count < 4; ++count) {
    silent.push_back(connect());
    net::run_turns(loop);
  }
  Fd fifth = connect();
  net::send_blocking(fifth.get(), hello());
  EXPECT_TRUE(until([&] { return entered.size() == 1; }));
  EXPECT_TRUE(until_end(silent[0])) << "and is told nothing";
  for (size_t index : {1u, 2u, 3u}) EXPECT_EQ(look(silent[index]), Sees::nothing) << "the others keep their places";
  for (size_t index : {1u, 2u, 3u}) net::send_blocking(silent[index].get(), hello());
  EXPECT_TRUE(until([&] { return entered.size() == 4; }));
}

TEST_F(DoorTest, newcomer_has_a_moment_to_say_hello_before_it_gives_way) {
  open({.handshake = 1h, .pending = 1, .moment = 1h});
  Fd first = connect();
  net::run_turns(loop);
  Fd second = connect();  // waits in the listener's queue
  net::run_turns(loop);
  EXPECT_EQ(look(first), Sees::nothing) << "it was not sent away";
  net::send_blocking(first.get(), hello());
  EXPECT_TRUE(until([&] { return door->sessions().size() == 1; }));
}

TEST_F(DoorTest, silent_connections_hold_at_most_the_places_there_are) {
  open({.handshake = 1h, .pending = 4, .moment = 0s});
  std::vector<Fd> silent;
  for (int count = 0; count < 50; ++count) {
    silent.push_back(connect());
    net::run_turns(loop, 1);
  }
  net::run_turns(loop);
  size_t held = 0;
  for (const Fd& one : silent) held += look(one) == Sees::nothing;
  EXPECT_EQ(held, 4u);
}

TEST_F(DoorTest, real_peer_joins_behind_a_thousand_silent_connections) {
  open();
  std::atomic<bool> go = true;
  std::atomic<int> made = 0;
  std::thread flood([&] {
    std::vector<Fd> silent;
    for (int number = 0; number < 1000 && go; ++number, ++made) {
      silent.push_back(connect());
      if (silent.size() > 200) silent.erase(silent.begin());  // a process may not hold a thousand descriptors
    }
  });
  EXPECT_TRUE(until([&] { return made > 100; }));
  std::chrono::steady_clock::duration took{};
  std::thread real([&] {
    auto begun = std::chrono::steady_clock::now();
    Fd client = connect();
    net::send_blocking(client.get(), hello());
    net::BlockingReader reader(client.get());
    reader.read_available();
    took = std::chrono::steady_clock::now() - begun;
  });
  EXPECT_TRUE(until([&] { return !left.empty(); }));
  go = false;
  real.join();
  std::atomic<bool> done = false;
  std::thread joiner([&] {
    flood.join();
    done = true;
  });
  EXPECT_TRUE(until([&] { return done.load(); }));
  joiner.join();
  EXPECT_EQ(entered.size(), 1u);
  EXPECT_LT(took, 1s);
}

TEST_F(DoorTest, full_door_does_not_spin) {
  open({.handshake = 1h, .pending = 2});
  Fd first = connect(), second = connect(), waiting = connect();
  net::run_turns(loop);
  EXPECT_LT(cpu_seconds_of(300ms), 0.05);
}

TEST_F(DoorTest, without_descriptors_it_neither_spins_nor_loses_who_waits) {
  open();
  Fd client = connect();
  net::send_blocking(client.get(), hello());
  testing::internal::CaptureStderr();
  // None to accept with, then too few for all that a connection needs, then enough.
  for (size_t spare = 0; spare < 10 && entered.empty(); ++spare) {
    FewDescriptors few(spare);
    EXPECT_LT(cpu_seconds_of(250ms), 0.05) << spare;
    EXPECT_NE(look(client), Sees::end) << spare;
  }
  EXPECT_EQ(entered.size(), 1u);
  std::string said = testing::internal::GetCapturedStderr();
  // Not lines: the sanitizer, which needs descriptors itself, says something too.
  size_t first = said.find("no descriptors are left");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("no descriptors are left", first + 1), std::string::npos) << said;
}

TEST_F(DoorTest, real_peer_joins_while_a_thousand_garbage_connections_come) {
  open();
  std::atomic<bool> go = true;
  std::atomic<int> sent = 0;
  std::thread flood([&] {
    std::string garbage(8192, 'g');
    for (int number = 0; number < 1000 && go; ++number) {
      try {
        Fd socket = connect();
        size_t length = static_cast<size_t>(number * 37 % 4096) + 16;
        [[maybe_unused]] ssize_t count = ::send(socket.get(), garbage.data(), length, MSG_NOSIGNAL);
        ++sent;
      } catch (const std::exception&) {
      }
    }
  });
  EXPECT_TRUE(until([&] { return sent > 100; }));
  std::chrono::steady_clock::duration took{};
  std::thread real([&] {
    auto begun = std::chrono::steady_clock::now();
    Fd client = connect();
    net::send_blocking(client.get(), hello());
    net::BlockingReader reader(client.get());
    reader.read_available();  // its welcome
    took = std::chrono::steady_clock::now() - begun;
  });
  EXPECT_TRUE(until([&] { return !left.empty(); }));  // it came, was greeted, and went
  real.join();
  EXPECT_TRUE(until([&] { return sent == 1000; }));
  flood.join();
  EXPECT_EQ(entered.size(), 1u);
  EXPECT_LT(took, 1s);
}

TEST_F(DoorTest, client_that_died_is_gone_though_its_child_holds_the_socket) {
  open();
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  pid_t pid = ::fork();
  if (pid == 0) {
    Fd client = connect();
    net::send_blocking(client.get(), hello());
    net::BlockingReader reader(client.get());
    reader.read_available();  // welcome: it is in
    if (::fork() == 0) {
      ::close(hold[1]);
      char byte;
      [[maybe_unused]] ssize_t count = ::read(hold[0], &byte, 1);  // until the test lets go
      ::_exit(0);
    }
    ::_exit(0);
  }
  ::close(hold[0]);
  EXPECT_TRUE(until([&] { return !left.empty(); }));
  EXPECT_EQ(left, std::vector<std::string>{"its process died"});
  net::run_turns(loop);
  EXPECT_TRUE(door->sessions().empty());
  ::close(hold[1]);
  ::waitpid(pid, nullptr, 0);
}

TEST_F(DoorTest, sessions_are_found_by_number) {
  open();
  Fd one = connect(), two = connect();
  net::send_blocking(one.get(), hello());
  net::send_blocking(two.get(), hello());
  EXPECT_TRUE(until([&] { return entered.size() == 2; }));
  for (Session& session : door->sessions()) EXPECT_EQ(door->find(session.number), &session);
  EXPECT_EQ(door->find(12345), nullptr);
}

}  // namespace ddip::coordinator
