#include "ddip/client/client.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "ddip/base/error.h"
#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"
#include "ddip/wire/codec.h"

namespace ddip::client {
namespace fs = std::filesystem;
namespace {

using namespace std::chrono_literals;
using wire::Message;
using wire::Type;

const std::string kKey(32, 'k');

// The coordinator's side of one connection: a thread that answers as the test says.
class FakeCoordinator {
 public:
  using Answer = std::function<void(FakeCoordinator&, const Message&)>;

  FakeCoordinator(const fs::path& path, Answer answer)
      : listener_(net::listen_at(path)), answer_(std::move(answer)), thread_([this] { run(); }) {}
  ~FakeCoordinator() {
    stop_ = true;
    thread_.join();
  }

  void say(Type type, uint64_t id, json body = json::object(), int rank = wire::kNoRank,
           const std::vector<int>& descriptors = {}) {
    net::send_blocking(socket_.get(), wire::encode({type, rank, 0, id, std::move(body), {}}), descriptors);
  }
  void record(uint64_t cell, RecordKind kind, const std::string& text, uint64_t sequence, int rank = 0) {
    say(Type::record, cell,
        {{"sequence", sequence},
         {"time_us", 0},
         {"kind", static_cast<int>(kind)},
         {"stream", 1},
         {"body", json::binary(std::vector<uint8_t>(text.begin(), text.end()))}},
        rank);
  }
  void close() { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  void run() {
    while (!socket_ && !stop_) {
      socket_ = net::accept_from(listener_.get());
      if (!socket_) ::usleep(1000);
    }
    if (!socket_) return;
    ::fcntl(socket_.get(), F_SETFL, 0);
    net::BlockingReader reader(socket_.get());
    try {
      for (;;) {
        for (net::Parcel& parcel : reader.read_available()) answer_(*this, wire::decode(parcel.body));
      }
    } catch (const PeerLost&) {
    }
  }

  Fd listener_;
  Fd socket_;
  Answer answer_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

class ClientTest : public testing::Test {
 protected:
  ClientTest() {
    std::string pattern = testing::TempDir() + "ddip-client-XXXXXX";
    folder = {::mkdtemp(pattern.data())};
    std::ofstream(folder.key(), std::ios::binary) << kKey;
  }
  ~ClientTest() override {
    client.reset();
    coordinator.reset();
    fs::remove_all(folder.path);
  }

  // Greets, and leaves the rest to `then`.
  void open(FakeCoordinator::Answer then) {
    coordinator = std::make_unique<FakeCoordinator>(
        folder.socket(), [this, then = std::move(then)](FakeCoordinator& self, const Message& message) {
          if (message.type != Type::hello) return then(self, message);
          hello = message.body;
          self.say(Type::welcome, message.id, {{"world_size", 2}});
        });
    client = std::make_unique<Client>(folder, "tester");
  }

  Accepted execute(bool keep_all) { return client->execute({{"ranks", json::array()}}, {}, 5s, keep_all); }
  CellEvent next(uint64_t cell) {
    std::optional<CellEvent> event = client->next(cell, 5s);
    if (!event) throw TimedOut("no event");
    return std::move(*event);
  }

  GroupFolder folder;
  std::atomic<int> sent = 0;
  json hello;
  std::unique_ptr<FakeCoordinator> coordinator;
  std::unique_ptr<Client> client;
};

}  // namespace

TEST_F(ClientTest, hello_carries_role_name_and_key_and_the_welcome_is_kept) {
  open([](FakeCoordinator&, const Message&) {});
  EXPECT_EQ(client->welcome().at("world_size"), 2);
  EXPECT_EQ(hello.at("role"), "client");
  EXPECT_EQ(hello.at("client"), "tester");
  const auto& key = hello.at("key").get_binary();
  EXPECT_EQ(std::string(key.begin(), key.end()), kKey);
}

TEST_F(ClientTest, nobody_there_no_key_or_a_closed_door_are_a_lost_peer) {
  EXPECT_THROW(Client(folder, "tester"), PeerLost);
  {
    FakeCoordinator refuses(folder.socket(), [](FakeCoordinator& self, const Message&) { self.close(); });
    EXPECT_THROW(Client(folder, "tester"), PeerLost);
  }
  fs::remove(folder.key());
  FakeCoordinator listens(folder.socket(), [](FakeCoordinator&, const Message&) {});
  EXPECT_THROW(Client(folder, "tester"), PeerLost);
}

TEST_F(ClientTest, coordinator_that_says_nothing_is_timed_out) {
  FakeCoordinator silent(folder.socket(), [](FakeCoordinator&, const Message&) {});
  EXPECT_THROW(Client(folder, "tester", 20ms), TimedOut);
}

TEST_F(ClientTest, requests_are_answered_refused_or_timed_out) {
  open([](FakeCoordinator& self, const Message& message) {
    if (message.type == Type::info) self.say(Type::answer, message.id, {{"phase", "running"}});
    if (message.type == Type::restart) self.say(Type::refused, message.id, {{"why", "rank 9 is not in this group"}});
  });
  EXPECT_EQ(client->request(Type::info, json::object(), 5s).at("phase"), "running");
  try {
    client->request(Type::restart, {{"ranks", {9}}}, 5s);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "rank 9 is not in this group");
  }
  EXPECT_THROW(client->request(Type::why, json::object(), 10ms), TimedOut);
  EXPECT_EQ(client->request(Type::info, json::object(), 5s).at("phase"), "running") << "and goes on";
}

TEST_F(ClientTest, answers_in_any_order_reach_the_thread_that_asked) {
  open([waiting = std::vector<uint64_t>(), numbers = std::vector<int>()](FakeCoordinator& self,
                                                                         const Message& message) mutable {
    waiting.push_back(message.id);
    numbers.push_back(message.body.at("number").get<int>());
    if (waiting.size() < 8) return;
    for (size_t index = waiting.size(); index-- > 0;)
      self.say(Type::answer, waiting[index], {{"number", numbers[index]}});
  });
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back(
        [&, number] { right += client->request(Type::info, {{"number", number}}, 5s).at("number") == number; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 8);
}

TEST_F(ClientTest, late_answer_is_nobodys) {
  open([late = uint64_t{0}](FakeCoordinator& self, const Message& message) mutable {
    if (message.type == Type::why) {
      late = message.id;
      return;
    }
    self.say(Type::answer, late, {{"late", true}});
    self.say(Type::answer, message.id, {{"late", false}});
  });
  EXPECT_THROW(client->request(Type::why, json::object(), 10ms), TimedOut);
  EXPECT_EQ(client->request(Type::info, json::object(), 5s).at("late"), false);
}

TEST_F(ClientTest, events_of_a_cell_come_in_order_with_their_fields) {
  open([](FakeCoordinator& self, const Message& message) {
    self.say(Type::accepted, message.id, {{"cell", 7}, {"behind", {{{"cell", 3}}}}});
    self.record(7, RecordKind::output, "hello\n", 11, 1);
    Fd file(::memfd_create("client_test", MFD_CLOEXEC));
    self.say(Type::payload, 7, json::object(), 1, {file.get()});
    self.record(7, RecordKind::rank_done, "{}", 12, 1);
    self.say(Type::input_request, 7, {{"prompt", "?"}}, 0);
  });
  Accepted accepted = execute(true);
  EXPECT_EQ(accepted.cell, 7u);
  EXPECT_EQ(accepted.behind.at(0).at("cell"), 3);
  CellEvent event = next(7);
  EXPECT_EQ(event.type, Type::record);
  EXPECT_EQ(event.kind, RecordKind::output);
  EXPECT_EQ(event.bytes, "hello\n");
  EXPECT_EQ(event.sequence, 11u);
  EXPECT_EQ(event.rank, 1);
  EXPECT_EQ(event.stream, 1);
  event = next(7);
  EXPECT_EQ(event.type, Type::payload);
  EXPECT_EQ(event.descriptors.size(), 1u);
  EXPECT_EQ(next(7).kind, RecordKind::rank_done);
  event = next(7);
  EXPECT_EQ(event.type, Type::input_request);
  EXPECT_EQ(event.body.at("prompt"), "?");
  EXPECT_FALSE(client->next(7, 1ms));
}

TEST_F(ClientTest, descriptors_of_a_task_travel_with_it_and_too_many_are_refused) {
  open([](FakeCoordinator& self, const Message& message) {
    self.say(Type::accepted, message.id, {{"cell", 1}, {"behind", json::array()}});
  });
  Fd file(::memfd_create("client_test", MFD_CLOEXEC));
  EXPECT_EQ(client->execute({{"ranks", json::array()}}, {file.get()}, 5s, true).cell, 1u);
  EXPECT_THROW(client->execute({{"ranks", json::array()}}, std::vector<int>(264, file.get()), 5s, true), ProtocolError);
}

TEST_F(ClientTest, cell_that_no_frame_can_carry_is_refused_in_one_line_and_the_next_one_goes) {
  open([](FakeCoordinator& self, const Message& message) {
    self.say(Type::accepted, message.id, {{"cell", 1}, {"behind", json::array()}});
  });
  try {
    client->execute({{"ranks", json::array()}, {"code", std::string(17u << 20, 'a')}}, {}, 5s, true);
    FAIL() << "it was sent";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "this cell has 17.0 MiB, and at most 15.9 can be sent; read its data from a file, or push() it");
  }
  EXPECT_EQ(client->execute({{"ranks", json::array()}}, {}, 5s, true).cell, 1u);
}

TEST_F(ClientTest, flood_that_nobody_takes_gives_way_to_a_gap_and_endings_stay) {
  constexpr int kBlocks = 150;
  std::string block;
  for (int line = 0; line < 1000; ++line) block += std::string(99, 'l') + "\n";  // 100 kB, so 15 MB in all
  open([block](FakeCoordinator& self, const Message& message) {
    if (message.type == Type::info) return self.say(Type::answer, message.id);
    self.say(Type::accepted, message.id, {{"cell", 1}, {"behind", json::array()}});
    self.record(1, RecordKind::display, "kept", 1);
    for (int number = 0; number < kBlocks; ++number)
      self.record(1, RecordKind::output, block, static_cast<uint64_t>(number) + 2);
    self.record(1, RecordKind::rank_done, "{}", 9999);
  });
  execute(false);
  client->request(Type::info, json::object(), 20s);  // everything has been read by now
  CellEvent gap = next(1);
  EXPECT_EQ(gap.kind, RecordKind::gap);
  int elided = std::atoi(gap.bytes.c_str());
  EXPECT_NE(gap.bytes.find("lines elided"), std::string::npos);
  EXPECT_EQ(next(1).kind, RecordKind::display) << "what is no output is never dropped";
  int lines = 0;
  uint64_t sequence = 0;
  CellEvent event;
  for (event = next(1); event.kind == RecordKind::output; event = next(1)) {
    EXPECT_GT(event.sequence, sequence);
    sequence = event.sequence;
    lines += static_cast<int>(std::count(event.bytes.begin(), event.bytes.end(), '\n'));
  }
  EXPECT_EQ(event.kind, RecordKind::rank_done);
  EXPECT_EQ(lines + elided, kBlocks * 1000) << "every line is shown or counted";
  EXPECT_EQ(sequence, static_cast<uint64_t>(kBlocks) + 1) << "the newest is kept";
}

TEST_F(ClientTest, with_keep_all_nothing_is_dropped_and_the_sender_waits) {
  constexpr int kBlocks = 150;
  open([this, block = std::string(100000, 'k')](FakeCoordinator& self, const Message& message) {
    self.say(Type::accepted, message.id, {{"cell", 1}, {"behind", json::array()}});
    for (int number = 0; number < kBlocks; ++number, ++sent)
      self.record(1, RecordKind::output, block, static_cast<uint64_t>(number) + 1);
  });
  execute(true);
  int before = -1;
  for (int round = 0; round < 100 && before != sent; ++round) {  // until it moves no more
    before = sent;
    ::usleep(50000);
  }
  EXPECT_LT(sent, 120) << "piled up";
  for (int number = 0; number < kBlocks; ++number) EXPECT_EQ(next(1).sequence, static_cast<uint64_t>(number) + 1);
}

TEST_F(ClientTest, forgotten_cell_does_not_hold_up_the_others) {
  open([block = std::string(1000000, 'f')](FakeCoordinator& self, const Message& message) {
    if (message.type == Type::info) return self.say(Type::answer, message.id, {{"alive", true}});
    self.say(Type::accepted, message.id, {{"cell", 1}, {"behind", json::array()}});
    for (int number = 0; number < 12; ++number) self.record(1, RecordKind::output, block, 1);
  });
  uint64_t cell = execute(true).cell;
  EXPECT_THROW(client->request(Type::info, json::object(), 100ms), TimedOut) << "it waits behind the cell's output";
  client->forget(cell);
  EXPECT_EQ(client->request(Type::info, json::object(), 30s).at("alive"), true);
  EXPECT_FALSE(client->next(cell, 1ms));
}

TEST_F(ClientTest, goes_at_once_though_nobody_took_its_events) {
  open([block = std::string(1000000, 'f')](FakeCoordinator& self, const Message& message) {
    self.say(Type::accepted, message.id, {{"cell", 1}, {"behind", json::array()}});
    for (int number = 0; number < 12; ++number) self.record(1, RecordKind::output, block, 1);
  });
  execute(true);
  next(1);
  auto begun = std::chrono::steady_clock::now();
  client.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 2s);
}

TEST_F(ClientTest, what_came_before_the_end_is_given_before_the_end_is_told) {
  open([](FakeCoordinator& self, const Message& message) {
    self.say(Type::accepted, message.id, {{"cell", 1}, {"behind", json::array()}});
    self.record(1, RecordKind::output, "last words", 1);
    self.close();
  });
  execute(true);
  EXPECT_EQ(next(1).bytes, "last words");
  EXPECT_THROW(next(1), PeerLost);
  EXPECT_THROW(client->request(Type::info, json::object(), 5s), PeerLost);
  EXPECT_THROW(client->execute({{"ranks", json::array()}}, {}, 5s, true), PeerLost);
}

TEST_F(ClientTest, whoever_reads_reads_for_the_others_and_hands_over_when_it_goes) {
  std::atomic<int> asked = 0;
  open([&](FakeCoordinator& self, const Message& message) {
    if (message.type == Type::execute)
      return self.say(Type::accepted, message.id, {{"cell", 1}, {"behind", json::array()}});
    ++asked;
    if (message.type == Type::why) return;  // never answered: the one who asks reads meanwhile
    for (uint64_t number = 1; number <= 200; ++number) self.record(1, RecordKind::output, "x", number);
    self.say(Type::answer, message.id);
  });
  execute(true);
  std::thread reads([&] { EXPECT_THROW(client->request(Type::why, json::object(), 300ms), TimedOut); });
  std::thread takes([&] {
    for (uint64_t number = 1; number <= 400; ++number) EXPECT_EQ(next(1).sequence, (number - 1) % 200 + 1);
  });
  while (asked < 1) std::this_thread::yield();
  client->request(Type::info, json::object(), 5s);
  reads.join();
  client->request(Type::info, json::object(), 5s);
  takes.join();
}

TEST_F(ClientTest, waiting_request_ends_when_the_group_does) {
  open([](FakeCoordinator& self, const Message&) { self.close(); });
  auto begun = std::chrono::steady_clock::now();
  EXPECT_THROW(client->request(Type::info, json::object(), 60s), PeerLost);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 5s);
}

TEST_F(ClientTest, garbage_from_the_group_is_its_end) {
  open([](FakeCoordinator& self, const Message&) { self.say(Type::accepted, 1, {{"cell", "not a number"}}); });
  EXPECT_THROW(client->request(Type::info, json::object(), 5s), PeerLost);
}

TEST_F(ClientTest, cells_of_others_are_seen_only_by_those_who_watch) {
  open([](FakeCoordinator& self, const Message& message) {
    self.record(42, RecordKind::output, message.type == Type::watch ? "watched" : "not watched", 1);
    self.say(message.type == Type::watch ? Type::caught_up : Type::answer, message.id, {{"cells", json::array()}});
  });
  client->request(Type::info, json::object(), 5s);
  EXPECT_FALSE(client->next(0, 1ms));
  client->request(Type::watch, json::object(), 5s);
  CellEvent event = next(0);
  EXPECT_EQ(event.cell, 42u);
  EXPECT_EQ(event.bytes, "watched");
}

}  // namespace ddip::client
