// The whole coordinator between a client on a real socket and an agent that is this test.
#include "ddip/coordinator/coordinator.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "ddip/base/error.h"
#include "ddip/coordinator/journal.h"
#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"
#include "ddip/testing/run_until.h"
#include "ddip/wire/codec.h"

namespace ddip::coordinator {
namespace fs = std::filesystem;
namespace {

using namespace std::chrono_literals;
using wire::json;
using wire::Message;
using wire::Type;
using Messages = std::vector<Message>;

const std::string kKey(32, 'k');

json binary(const std::string& text) { return json::binary(std::vector<uint8_t>(text.begin(), text.end())); }

struct Client {
  explicit Client(const fs::path& path, const std::string& name = "tester")
      : socket(net::connect_to(path)), reader(socket.get()) {
    say(Type::hello, 1, {{"role", "client"}, {"client", name}, {"key", binary(kKey)}});
  }

  void say(Type type, uint64_t id, json body = json::object(), int rank = wire::kNoRank) {
    net::send_blocking(socket.get(), wire::encode({type, rank, 0, id, std::move(body), {}}));
  }

  // Takes what has come.
  void listen() {
    for (;;) {
      pollfd event{socket.get(), POLLIN, 0};
      if (::poll(&event, 1, 0) <= 0) return;
      for (net::Parcel& parcel : reader.read_available()) heard.push_back(wire::decode(parcel.body));
    }
  }

  const Message* find(Type type, uint64_t id) const {
    for (const Message& message : heard) {
      if (message.type == type && message.id == id) return &message;
    }
    return nullptr;
  }

  // "output: hello", in order.
  std::vector<std::string> records(uint64_t cell) const {
    std::vector<std::string> texts;
    for (const Message& message : heard) {
      if (message.type != Type::record || message.id != cell) continue;
      const auto& bytes = message.body.at("body").get_binary();
      const char* kinds[] = {"started", "output", "display", "rank_done", "cell_done", "note", "gap"};
      texts.push_back(kinds[message.body.at("kind").get<size_t>()] + std::string(": ") +
                      std::string(bytes.begin(), bytes.end()));
    }
    return texts;
  }

  Fd socket;
  net::BlockingReader reader;
  Messages heard;
};

class CoordinatorTest : public testing::Test {
 protected:
  CoordinatorTest() {
    std::string pattern = testing::TempDir() + "ddip-coordinator-XXXXXX";
    folder = ::mkdtemp(pattern.data());
  }
  ~CoordinatorTest() override {
    coordinator.reset();
    fs::remove_all(folder);
  }

  // A group whose ranks have all joined.
  void open(int world_size) {
    Options options;
    options.name = "test";
    options.environments.assign(static_cast<size_t>(world_size), json::object());
    options.key = kKey;
    options.listener = net::listen_at(path());
    options.journal_folder = folder / "journal";
    coordinator = std::make_unique<Coordinator>(
        loop, std::move(options),
        Coordinator::Events{[this](Message message) { to_agent.push_back(std::move(message)); },
                            [] { return json::object(); }, [] {}, [](const std::string&) {},
                            [this] { stopped = true; }});
    coordinator->start();
    for (int rank = 0; rank < world_size; ++rank) join(rank);
    to_agent.clear();
  }

  void join(int rank, uint64_t incarnation = 1) { from_agent(Type::joined, rank, incarnation, {{"pid", ::getpid()}}); }
  void from_agent(Type type, int rank, uint64_t id, json body) {
    coordinator->on_agent({type, rank, 0, id, std::move(body), {}});
  }
  void print(int rank, uint64_t cell, const std::string& text) {
    from_agent(Type::output, rank, cell, {{"stream", 1}, {"bytes", binary(text)}});
  }
  void finish(int rank, uint64_t cell, const std::string& outcome = "ok") {
    from_agent(Type::done, rank, cell, {{"outcome", outcome}});
  }

  fs::path path() const { return folder / "socket"; }

  void until_heard(Client& client, Type type, uint64_t id) {
    ASSERT_TRUE(net::run_until(loop,
                               [&] {
                                 client.listen();
                                 return client.find(type, id) != nullptr;
                               }))
        << wire::name_of(type) << " " << id;
  }
  // Everything said until now has arrived: an answer comes after it.
  void settle(Client& client) {
    client.say(Type::ping, ++last_ping);
    until_heard(client, Type::answer, last_ping);
  }
  uint64_t execute(Client& client, json body) {
    client.say(Type::execute, ++last_request, std::move(body));
    until_heard(client, Type::accepted, last_request);
    const Message* accepted = client.find(Type::accepted, last_request);
    return accepted ? accepted->body.at("cell").get<uint64_t>() : 0;
  }

  const Message* told_agent(Type type, int rank = wire::kNoRank) const {
    for (const Message& message : to_agent) {
      if (message.type == type && message.rank == rank) return &message;
    }
    return nullptr;
  }

  net::Loop loop;
  fs::path folder;
  std::unique_ptr<Coordinator> coordinator;
  Messages to_agent;
  bool stopped = false;
  uint64_t last_request = 100;
  uint64_t last_ping = 1000;
};

}  // namespace

TEST_F(CoordinatorTest, cell_ends_once_every_rank_has_ended) {
  open(2);
  Client client(path());
  uint64_t cell = execute(client, {{"ranks", json::array()}, {"code", "1"}});
  ASSERT_NE(told_agent(Type::execute), nullptr);
  EXPECT_EQ(told_agent(Type::execute)->id, cell);
  EXPECT_EQ(told_agent(Type::execute)->body.at("ranks"), (json{0, 1}));
  print(1, cell, "hello");
  finish(0, cell);
  finish(0, cell);
  settle(client);
  EXPECT_EQ(client.records(cell), (std::vector<std::string>{"output: hello", R"(rank_done: {"outcome":"ok"})"}));
  finish(1, cell);
  settle(client);
  EXPECT_EQ(client.records(cell).size(), 4u);
  EXPECT_EQ(client.records(cell).back(), "cell_done: {}");
}

TEST_F(CoordinatorTest, what_is_said_after_a_cells_end_goes_to_those_who_wait_for_that) {
  open(1);
  Client client(path()), late(path(), "");
  late.say(Type::watch, 4, {{"late", true}});
  until_heard(late, Type::caught_up, 4);
  uint64_t cell = execute(client, {{"ranks", json::array()}});
  print(0, cell, "in time");
  finish(0, cell);
  print(0, cell, "late");
  print(0, 0, "between cells");
  settle(client);
  settle(late);
  EXPECT_EQ(late.records(cell), std::vector<std::string>{"output: late"});
  EXPECT_EQ(late.records(0), std::vector<std::string>{});
  EXPECT_EQ(client.records(cell).size(), 3u) << "output and two endings";
  client.say(Type::info, 9);
  until_heard(client, Type::answer, 9);
  EXPECT_EQ(client.find(Type::answer, 9)->body.at("clients").size(), 1u) << "it is nobody of its own";
}

TEST_F(CoordinatorTest, late_output_that_nobody_takes_is_left_to_the_journal) {
  open(1);
  Client client(path()), late(path(), "");
  late.say(Type::watch, 4, {{"late", true}});
  until_heard(late, Type::caught_up, 4);
  uint64_t cell = execute(client, {{"ranks", json::array()}});
  finish(0, cell);
  constexpr size_t kPrints = 100;
  for (size_t number = 0; number < kPrints; ++number) print(0, cell, std::string(100'000, 'x'));
  settle(late);
  print(0, cell, "at last");
  settle(late);
  const std::vector<std::string> records = late.records(cell);
  EXPECT_LT(records.size(), kPrints);
  ASSERT_GT(records.size(), 2u);
  EXPECT_EQ(records[records.size() - 2], "gap: lines left out (%diplog)");
  EXPECT_EQ(records.back(), "output: at last");
}

TEST_F(CoordinatorTest, rank_named_twice_runs_a_cell_once) {
  open(3);
  Client client(path());
  execute(client, {{"ranks", {2, 0, 2, 0}}});
  ASSERT_NE(told_agent(Type::execute), nullptr);
  EXPECT_EQ(told_agent(Type::execute)->body.at("ranks"), (json{2, 0})) << "in the order in which they were named";
}

TEST_F(CoordinatorTest, others_are_told_of_the_first_failure) {
  open(3);
  Client client(path());
  uint64_t cell = execute(client, {{"ranks", json::array()}});
  finish(1, cell, "error");
  ASSERT_NE(told_agent(Type::interrupt), nullptr);
  EXPECT_EQ(told_agent(Type::interrupt)->body.at("ranks"), (json{0, 2}));
  EXPECT_EQ(told_agent(Type::interrupt)->body.at("peer"), 1);
}

TEST_F(CoordinatorTest, lost_rank_ends_its_cells_with_its_last_lines) {
  open(2);
  Client client(path());
  uint64_t cell = execute(client, {{"ranks", {1}}});
  print(1, cell, "last line\n");
  from_agent(Type::exited, 1, 1, {{"why", "signal 9"}});
  settle(client);
  auto records = client.records(cell);
  ASSERT_EQ(records.size(), 3u);
  json ending = json::parse(records[1].substr(records[1].find('{')));
  EXPECT_EQ(ending.at("outcome"), "lost");
  EXPECT_EQ(ending.at("why"), "signal 9");
  EXPECT_EQ(ending.at("tail"), "last line\n");
  EXPECT_EQ(ending.at("detail").at("why"), "signal 9");
  client.say(Type::execute, 7, {{"ranks", {0, 1}}});
  until_heard(client, Type::refused, 7);
}

TEST_F(CoordinatorTest, silent_cell_is_seen_by_nobody_else) {
  open(1);
  Client client(path()), other(path(), "other");
  other.say(Type::watch, 2);
  until_heard(other, Type::caught_up, 2);
  uint64_t cell = execute(client, {{"ranks", json::array()}, {"silent", true}});
  print(0, cell, "hello");
  finish(0, cell);
  settle(client);
  settle(other);
  EXPECT_EQ(client.records(cell).size(), 3u);
  EXPECT_TRUE(other.records(cell).empty());
  EXPECT_EQ(client.find(Type::record, cell)->body.at("sequence"), 0);
  read_journal(folder / "journal", 0, [&](const Record& record) {
    EXPECT_NE(record.cell, cell);
    return true;
  });
}

TEST_F(CoordinatorTest, client_that_does_not_read_gets_all_of_it_in_order_later) {
  open(1);
  Client client(path());
  uint64_t cell = execute(client, {{"ranks", json::array()}});
  constexpr int kPieces = 120;
  const std::string filling(64u << 10, 'x');
  for (int piece = 0; piece < kPieces; ++piece) print(0, cell, std::to_string(piece) + filling);
  finish(0, cell);
  ASSERT_TRUE(net::run_until(loop, [&] {
    client.listen();
    return client.heard.back().body.value("kind", -1) == static_cast<int>(RecordKind::cell_done);
  }));
  auto records = client.records(cell);
  ASSERT_EQ(records.size(), kPieces + 2u);
  for (size_t piece = 0; piece < kPieces; ++piece)
    ASSERT_TRUE(records[piece].starts_with("output: " + std::to_string(piece) + "x"));
}

TEST_F(CoordinatorTest, client_that_comes_back_is_given_what_it_has_not_acknowledged) {
  open(1);
  uint64_t seen = 0;
  {
    Client client(path());
    uint64_t cell = execute(client, {{"ranks", json::array()}});
    print(0, cell, "one");
    print(0, cell, "two");
    settle(client);
    seen = client.find(Type::record, cell)->body.at("sequence").get<uint64_t>();
    client.say(Type::acknowledge, 0, {{"sequence", seen}});
    settle(client);
  }
  finish(0, 1);
  Client client(path());
  client.say(Type::watch, 2);
  until_heard(client, Type::caught_up, 2);
  EXPECT_EQ(client.records(1),
            (std::vector<std::string>{"output: two", R"(rank_done: {"outcome":"ok"})", "cell_done: {}"}));
}

TEST_F(CoordinatorTest, why_describes_a_rank_that_says_nothing) {
  open(2);
  Client client(path());
  client.say(Type::why, 5);
  ASSERT_TRUE(net::run_until(loop, [&] { return told_agent(Type::why) != nullptr; }));
  from_agent(Type::stacks, 0, told_agent(Type::why)->id, {{"stack", "here"}});
  until_heard(client, Type::answer, 5);
  const json& ranks = client.find(Type::answer, 5)->body.at("ranks");
  EXPECT_EQ(ranks.at(0).at("stack"), "here");
  EXPECT_FALSE(ranks.at(0).contains("silent"));
  EXPECT_TRUE(ranks.at(1).contains("silent"));
}

TEST_F(CoordinatorTest, rank_that_asks_for_input_is_refused_when_its_client_has_left) {
  open(1);
  {
    Client client(path());
    uint64_t cell = execute(client, {{"ranks", json::array()}});
    from_agent(Type::input_request, 0, cell, {{"prompt", "?"}});
    until_heard(client, Type::input_request, cell);
    EXPECT_EQ(told_agent(Type::input_reply, 0), nullptr);
  }
  ASSERT_TRUE(net::run_until(loop, [&] { return told_agent(Type::input_reply, 0) != nullptr; }));
  EXPECT_TRUE(told_agent(Type::input_reply, 0)->body.contains("error"));
  to_agent.clear();
  from_agent(Type::input_request, 0, 1, {{"prompt", "again?"}});
  EXPECT_NE(told_agent(Type::input_reply, 0), nullptr);
}

TEST_F(CoordinatorTest, restart_is_answered_when_the_rank_is_back) {
  open(2);
  Client client(path());
  client.say(Type::restart, 5, {{"ranks", {1}}});
  ASSERT_TRUE(net::run_until(loop, [&] { return told_agent(Type::kill, 1) != nullptr; }));
  EXPECT_EQ(told_agent(Type::kill, 1)->body.at("why"), "replaced on request");
  from_agent(Type::exited, 1, 1, {{"why", "signal 9"}});
  ASSERT_NE(told_agent(Type::spawn, 1), nullptr);
  settle(client);
  EXPECT_EQ(client.find(Type::answer, 5), nullptr);
  join(1, 2);
  until_heard(client, Type::answer, 5);
  EXPECT_EQ(client.find(Type::answer, 5)->body.at("ranks").at(1).at("incarnation"), 2);
}

TEST_F(CoordinatorTest, workers_that_start_later_have_what_a_cell_that_went_well_set) {
  open(2);
  Client client(path());
  uint64_t failed = execute(client, {{"ranks", json::array()}, {"environment", {{"DDIP_APP", "one"}}}});
  finish(0, failed);
  finish(1, failed, "error");
  client.say(Type::restart, 5, {{"ranks", {1}}});
  ASSERT_TRUE(net::run_until(loop, [&] { return told_agent(Type::kill, 1) != nullptr; }));
  from_agent(Type::exited, 1, 1, {{"why", "signal 9"}});
  EXPECT_FALSE(told_agent(Type::spawn, 1)->body.at("environment").contains("DDIP_APP"));
  join(1, 2);
  to_agent.clear();
  uint64_t cell = execute(client, {{"ranks", json::array()}, {"environment", {{"DDIP_APP", "two"}}}});
  finish(0, cell);
  finish(1, cell);
  client.say(Type::restart, 6, {{"ranks", {1}}});
  ASSERT_TRUE(net::run_until(loop, [&] { return told_agent(Type::kill, 1) != nullptr; }));
  from_agent(Type::exited, 1, 2, {{"why", "signal 9"}});
  EXPECT_EQ(told_agent(Type::spawn, 1)->body.at("environment").at("DDIP_APP"), "two");
}

TEST_F(CoordinatorTest, source_that_no_record_can_carry_is_refused_and_changes_nothing) {
  open(1);
  Client client(path()), watcher(path());
  watcher.say(Type::watch, 4, json::object());
  until_heard(watcher, Type::caught_up, 4);
  // 3 MiB here, 18 MiB in the journal. More than a socket takes while nobody reads it.
  std::thread sender(
      [&] { client.say(Type::execute, 5, {{"ranks", json::array()}, {"code", std::string(3u << 20, '\x01')}}); });
  until_heard(client, Type::refused, 5);
  sender.join();
  EXPECT_EQ(client.find(Type::refused, 5)->body.at("why"),
            "the source of this cell is 18.0 MiB as JSON, and at most 16 can be kept; read its data from a file, or "
            "push() it");
  EXPECT_EQ(told_agent(Type::execute), nullptr);
  uint64_t cell = execute(client, {{"ranks", json::array()}, {"code", "1"}});
  finish(0, cell);
  settle(watcher);
  EXPECT_EQ(watcher.records(cell).size(), 3u) << "its start, its rank's end, its end";
}

TEST_F(CoordinatorTest, environment_that_is_none_is_refused) {
  open(1);
  Client client(path());
  client.say(Type::execute, 5, {{"ranks", json::array()}, {"environment", "DDIP_APP"}});
  until_heard(client, Type::refused, 5);
  client.say(Type::execute, 6, {{"ranks", json::array()}, {"environment", {{"DDIP_APP", 1}}}});
  until_heard(client, Type::refused, 6);
}

TEST_F(CoordinatorTest, obituary_is_not_about_the_process_before) {
  open(1);
  Client client(path());
  from_agent(Type::exited, 0, 1, {{"why", "signal 11"}});
  client.say(Type::restart, 5, {{"ranks", {0}}});
  ASSERT_TRUE(net::run_until(loop, [&] { return told_agent(Type::spawn, 0) != nullptr; }));
  join(0, 2);
  uint64_t cell = execute(client, {{"ranks", json::array()}});
  client.say(Type::interrupt, 6, {{"kill", true}});
  until_heard(client, Type::answer, 6);
  settle(client);
  auto records = client.records(cell);
  ASSERT_EQ(records.size(), 2u);
  json ending = json::parse(records[0].substr(records[0].find('{')));
  EXPECT_EQ(ending.at("outcome"), "lost");
  EXPECT_EQ(ending.at("detail"), json::object()) << "how this one ended is not known yet";
}

TEST_F(CoordinatorTest, restart_that_a_stop_overtakes_is_refused) {
  open(2);
  Client client(path());
  client.say(Type::restart, 5, {{"ranks", {1}}});
  ASSERT_TRUE(net::run_until(loop, [&] { return told_agent(Type::kill, 1) != nullptr; }));
  coordinator->stop("the test");
  until_heard(client, Type::refused, 5);
}

TEST_F(CoordinatorTest, stop_ends_once_every_worker_is_gone) {
  open(2);
  coordinator->stop("the test");
  EXPECT_NE(told_agent(Type::stop, 0), nullptr);
  from_agent(Type::exited, 0, 1, {{"why", "exit code 0"}});
  EXPECT_FALSE(stopped);
  from_agent(Type::exited, 1, 1, {{"why", "exit code 0"}});
  EXPECT_TRUE(stopped);
}

}  // namespace ddip::coordinator
