#include "ddip/net/connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "ddip/base/error.h"
#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"
#include "ddip/net/transfer.h"
#include "ddip/testing/run_until.h"

namespace ddip::net {
namespace {

using namespace std::chrono_literals;

// One connection on a loop, its peer's raw end, and everything that was said.
class ConnectionTest : public testing::Test {
 protected:
  ConnectionTest() { open(); }

  void open(uint32_t cap = kBodyCap) {
    auto [ours, theirs] = socket_pair();
    peer = std::move(theirs);
    connection = std::make_unique<Connection>(
        loop, std::move(ours), cap,
        Connection::Events{[this](Parcel parcel) {
                             EXPECT_TRUE(closings.empty()) << "delivered after the end";
                             bodies.push_back(std::move(parcel.body));
                             if (on_parcel) on_parcel();
                           },
                           [this](const std::string& reason) { closings.push_back(reason); },
                           [this] {
                             ++drained;
                             if (on_drained) on_drained();
                           }});
  }

  void feed(std::string_view bytes) {
    ASSERT_EQ(::send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  bool closed() {
    return run_until(loop, [this] { return !closings.empty(); });
  }

  // What the peer finds in its socket now, without waiting.
  size_t read_peer(size_t limit = SIZE_MAX) {
    std::string scratch(1u << 20, '\0');
    size_t total = 0;
    while (total < limit) {
      ssize_t count = ::recv(peer.get(), scratch.data(), std::min(scratch.size(), limit - total), MSG_DONTWAIT);
      if (count <= 0) break;
      total += static_cast<size_t>(count);
    }
    return total;
  }

  Loop loop;
  Fd peer;
  std::vector<std::string> bodies;
  std::vector<std::string> closings;
  int drained = 0;
  std::function<void()> on_parcel;
  std::function<void()> on_drained;
  std::unique_ptr<Connection> connection;
};

}  // namespace

TEST_F(ConnectionTest, frames_go_both_ways) {
  connection->send("to you");
  BlockingReader reader(peer.get());
  EXPECT_EQ(reader.read_available().at(0).body, "to you");
  send_blocking(peer.get(), "to me");
  EXPECT_TRUE(run_until(loop, [this] { return bodies.size() == 1; }));
  EXPECT_EQ(bodies[0], "to me");
  EXPECT_TRUE(connection->open());
}

TEST_F(ConnectionTest, frame_that_can_wait_goes_before_the_next_and_with_it) {
  connection->send_soon("first");
  EXPECT_EQ(read_peer(), 0u);
  EXPECT_GT(connection->queued_bytes(), 0u);
  connection->send("second");
  BlockingReader reader(peer.get());
  std::vector<Parcel> parcels = reader.read_available();
  ASSERT_EQ(parcels.size(), 2u) << "one wake-up for both";
  EXPECT_EQ(parcels[0].body, "first");
  EXPECT_EQ(parcels[1].body, "second");
  EXPECT_EQ(connection->queued_bytes(), 0u);
}

TEST_F(ConnectionTest, frame_that_can_wait_does_not_wait_for_ever) {
  connection->send_soon("alone");
  EXPECT_TRUE(run_until(loop, [this] { return connection->queued_bytes() == 0; }));
  BlockingReader reader(peer.get());
  EXPECT_EQ(reader.read_available().at(0).body, "alone");
  connection->send_soon("again");
  EXPECT_TRUE(run_until(loop, [this] { return connection->queued_bytes() == 0; }));
  EXPECT_EQ(reader.read_available().at(0).body, "again");
}

TEST_F(ConnectionTest, descriptors_of_a_frame_stay_with_it_though_others_go_before) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Fd one(ends[0]), two(ends[1]);
  connection->send_soon("without");
  connection->send("with", {one.get(), two.get()});
  BlockingReader reader(peer.get());
  std::vector<Parcel> parcels = reader.read_available();
  ASSERT_EQ(parcels.size(), 2u);
  EXPECT_EQ(parcels[0].descriptors.size(), 0u);
  EXPECT_EQ(parcels[1].descriptors.size(), 2u);
}

TEST_F(ConnectionTest, threads_send_whole_frames_in_their_own_order) {
  constexpr int kThreads = 4, kFrames = 2000;
  std::vector<std::thread> threads;
  std::atomic<int> running = kThreads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int number = 0; number < kFrames; ++number)
        connection->send(std::to_string(thread) + ":" + std::to_string(number) + std::string(300, '.'));
      --running;
    });
  }
  std::vector<int> next(kThreads, 0);
  std::thread taker([&] {
    BlockingReader reader(peer.get());
    for (int left = kThreads * kFrames; left > 0;) {
      for (Parcel& parcel : reader.read_available()) {
        size_t thread = static_cast<size_t>(parcel.body.at(0) - '0');
        EXPECT_EQ(std::atoi(parcel.body.c_str() + 2), next.at(thread)++);
        --left;
      }
    }
  });
  EXPECT_TRUE(run_until(loop, [&] { return running == 0 && connection->queued_bytes() == 0; }));
  for (std::thread& thread : threads) thread.join();
  taker.join();
  EXPECT_EQ(next, std::vector<int>(kThreads, kFrames));
}

TEST_F(ConnectionTest, end_comes_once_and_after_everything_that_was_sent) {
  for (int number = 0; number < 100; ++number) send_blocking(peer.get(), std::to_string(number));
  peer.reset();
  EXPECT_TRUE(closed());
  EXPECT_EQ(bodies.size(), 100u);
  run_turns(loop);
  EXPECT_EQ(closings, std::vector<std::string>{"closed by peer"});
  EXPECT_FALSE(connection->open());
  EXPECT_EQ(connection->queued_bytes(), 0u);
}

TEST_F(ConnectionTest, close_is_told_once_on_a_later_turn_with_its_reason) {
  connection->close("enough");
  connection->close("again");
  EXPECT_TRUE(closings.empty());
  EXPECT_FALSE(connection->open());
  EXPECT_TRUE(closed());
  connection->close("late");
  run_turns(loop);
  EXPECT_EQ(closings, std::vector<std::string>{"enough"});
  char byte;
  EXPECT_EQ(::recv(peer.get(), &byte, 1, 0), 0);
}

TEST_F(ConnectionTest, nothing_is_delivered_after_close_even_if_it_was_read_already) {
  on_parcel = [this] { connection->close("that will do"); };
  feed(encode_frame("one", 0) + encode_frame("two", 0) + encode_frame("three", 0));
  EXPECT_TRUE(closed());
  run_turns(loop);
  EXPECT_EQ(bodies, std::vector<std::string>{"one"});
  EXPECT_EQ(closings.size(), 1u);
}

TEST_F(ConnectionTest, sending_after_the_end_does_nothing) {
  peer.reset();
  EXPECT_TRUE(closed());
  connection->send("hello?");
  EXPECT_EQ(connection->queued_bytes(), 0u);
  EXPECT_EQ(connection->socket(), -1);
}

TEST_F(ConnectionTest, peer_that_goes_while_we_send_is_an_end_and_no_signal) {
  std::string large(4u << 20, 'l');
  connection->send(large);
  EXPECT_GT(connection->queued_bytes(), 0u);
  peer.reset();
  EXPECT_TRUE(closed());
  EXPECT_EQ(closings, std::vector<std::string>{"closed by peer"});
}

TEST_F(ConnectionTest, destroyed_inside_its_own_parcel_callback) {
  on_parcel = [this] { connection.reset(); };
  feed(encode_frame("one", 0) + encode_frame("two", 0));
  peer.reset();
  EXPECT_TRUE(run_until(loop, [this] { return bodies.size() == 1; }));
  run_turns(loop);
  EXPECT_EQ(bodies.size(), 1u);
  EXPECT_TRUE(closings.empty());
}

TEST_F(ConnectionTest, captures_of_a_callback_live_until_it_returns_though_it_destroys_the_connection) {
  auto [ours, theirs] = socket_pair();
  std::unique_ptr<Connection> mine;
  auto witness = std::make_shared<std::string>("still here");
  std::weak_ptr<std::string> alive = witness;
  std::string seen;
  mine = std::make_unique<Connection>(
      loop, std::move(ours), kBodyCap,
      Connection::Events{[&mine, &seen, witness = std::move(witness)](Parcel) {
                           mine.reset();
                           seen = *witness;
                         },
                         [](const std::string&) { FAIL() << "destroyed: nobody to tell"; }, nullptr});
  send_blocking(theirs.get(), "go");
  EXPECT_TRUE(run_until(loop, [&] { return !seen.empty(); }));
  EXPECT_EQ(seen, "still here");
  run_turns(loop);
  EXPECT_TRUE(alive.expired()) << "and not longer";
}

TEST_F(ConnectionTest, destroyed_inside_its_own_closed_callback) {
  auto [ours, theirs] = socket_pair();
  std::unique_ptr<Connection> mine;
  int calls = 0;
  mine = std::make_unique<Connection>(
      loop, std::move(ours), kBodyCap,
      Connection::Events{[](Parcel) {},
                         [&mine, &calls, text = std::string(100, 't')](const std::string&) {
                           mine.reset();
                           calls += text.size() == 100 ? 1 : 1000;
                         },
                         nullptr});
  theirs.reset();
  EXPECT_TRUE(run_until(loop, [&] { return calls > 0; }));
  run_turns(loop);
  EXPECT_EQ(calls, 1);
}

TEST_F(ConnectionTest, destroyed_inside_its_own_drained_callback) {
  on_drained = [this] { connection.reset(); };
  connection->send(std::string(3u << 20, 'l'));
  EXPECT_TRUE(run_until(loop, [this] {
    read_peer();
    return drained > 0;
  }));
  run_turns(loop);
  EXPECT_EQ(drained, 1);
}

TEST_F(ConnectionTest, destroyed_before_its_end_was_told_tells_nobody) {
  connection->close("never heard");
  connection.reset();
  run_turns(loop);
  EXPECT_TRUE(closings.empty());
}

TEST_F(ConnectionTest, destroying_it_closes_the_socket) {
  connection.reset();
  run_turns(loop);
  char byte;
  EXPECT_EQ(::recv(peer.get(), &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(ConnectionTest, what_a_callback_throws_closes_it_with_that_reason) {
  on_parcel = [] { throw ProtocolError("not what I expect"); };
  feed(encode_frame("one", 0) + encode_frame("two", 0));
  EXPECT_TRUE(closed());
  EXPECT_EQ(closings, std::vector<std::string>{"not what I expect"});
  EXPECT_EQ(bodies.size(), 1u);
}

TEST_F(ConnectionTest, garbage_closes_it_and_nothing_of_it_is_delivered) {
  feed(encode_frame("fine", 0) + std::string(100, 'g') + encode_frame("not seen", 0));
  EXPECT_TRUE(closed());
  EXPECT_EQ(bodies, std::vector<std::string>{"fine"});
  EXPECT_EQ(closings, std::vector<std::string>{"bad magic: this is not a ddip stream"});
}

TEST_F(ConnectionTest, checksum_mismatch_closes_it) {
  std::string bad = encode_frame("flipped", 0);
  bad.back() = 'x';
  feed(bad);
  EXPECT_TRUE(closed());
  EXPECT_EQ(closings, std::vector<std::string>{"checksum mismatch"});
  EXPECT_TRUE(bodies.empty());
}

TEST_F(ConnectionTest, garbage_after_close_is_nobodys) {
  connection->close("done");
  EXPECT_TRUE(closed());
  ::send(peer.get(), "garbage", 7, MSG_NOSIGNAL);
  run_turns(loop);
  EXPECT_EQ(closings.size(), 1u);
}

TEST_F(ConnectionTest, cap_holds_until_it_is_raised) {
  open(kBodyCapBeforeHello);
  on_parcel = [this] { connection->raise_cap(kBodyCap); };
  std::string large(kBodyCapBeforeHello + 1, 'l');
  send_blocking(peer.get(), "hello");
  send_blocking(peer.get(), large);
  EXPECT_TRUE(run_until(loop, [this] { return bodies.size() == 2; }));

  open(kBodyCapBeforeHello);
  on_parcel = nullptr;
  send_blocking(peer.get(), large);
  EXPECT_TRUE(closed());
  EXPECT_EQ(bodies.size(), 2u);
}

TEST_F(ConnectionTest, slow_reader_makes_the_queue_grow_and_drained_is_said_once_when_it_fell) {
  std::string block(64u << 10, 'b');
  size_t sent = 0;
  for (; connection->queued_bytes() < (3u << 20); sent += kHeaderBytes + block.size()) connection->send(block);
  run_turns(loop);
  EXPECT_EQ(drained, 0);
  size_t read = 0;
  // Still above half of the bound: not yet.
  while (connection->queued_bytes() > (3u << 19)) {
    read += read_peer(256u << 10);
    run_turns(loop);
  }
  EXPECT_EQ(drained, 0);
  EXPECT_TRUE(run_until(loop, [&] {
    read += read_peer();
    return drained == 1;
  }));
  EXPECT_LT(connection->queued_bytes(), 1u << 20);
  EXPECT_TRUE(run_until(loop, [&] {
    read += read_peer();
    return read == sent;
  }));
  EXPECT_EQ(connection->queued_bytes(), 0u);
  EXPECT_EQ(drained, 1);
}

// A sender that goes on from on_drained (the coordinator's catch_up) would otherwise be entered while it is sending.
TEST_F(ConnectionTest, drained_is_never_said_inside_send) {
  bool sending = false;
  on_drained = [&] { EXPECT_FALSE(sending); };
  // Just over the bound: the socket takes enough at once to fall under it again.
  std::string block((1u << 20) + 1000, 'b');
  for (int round = 0; round < 3; ++round) {
    sending = true;
    connection->send(block);
    sending = false;
    EXPECT_TRUE(run_until(loop, [&] {
      read_peer();
      return connection->queued_bytes() == 0 && drained == round + 1;
    }));
  }
}

TEST_F(ConnectionTest, hundred_thousand_small_frames_keep_their_order) {
  constexpr int kFrames = 100000;
  std::thread echo([fd = peer.get()] {
    BlockingReader reader(fd);
    for (int seen = 0; seen < kFrames;) {
      for (Parcel& parcel : reader.read_available()) {
        send_blocking(fd, parcel.body);
        ++seen;
      }
    }
  });
  for (int number = 0; number < kFrames; ++number) connection->send(std::to_string(number));
  EXPECT_TRUE(run_until(loop, [&] { return bodies.size() == kFrames; }, 60s));
  echo.join();
  for (int number = 0; number < kFrames; ++number)
    ASSERT_EQ(bodies[static_cast<size_t>(number)], std::to_string(number));
}

TEST_F(ConnectionTest, descriptors_go_with_their_frames_through_a_full_queue) {
  connection->send(std::string(2u << 20, 'l'));  // the rest waits behind it
  for (int number = 0; number < 20; ++number) {
    Fd file(::memfd_create("connection_test", MFD_CLOEXEC));
    std::string text = std::to_string(number);
    ASSERT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    connection->send(text, {file.get()});  // duplicated: ours goes at once
    connection->send("none");
  }
  std::thread reading([fd = peer.get()] {
    BlockingReader reader(fd);
    int seen = 0;
    while (seen < 41) {
      for (Parcel& parcel : reader.read_available()) {
        ++seen;
        if (parcel.body.size() > 100 || parcel.body == "none") {
          EXPECT_TRUE(parcel.descriptors.empty());
          continue;
        }
        ASSERT_EQ(parcel.descriptors.size(), 1u);
        std::string text(10, '\0');
        ssize_t count = ::pread(parcel.descriptors[0].get(), text.data(), text.size(), 0);
        EXPECT_EQ(text.substr(0, static_cast<size_t>(count)), parcel.body);
      }
    }
  });
  EXPECT_TRUE(run_until(loop, [this] { return connection->queued_bytes() == 0; }));
  reading.join();
}

TEST_F(ConnectionTest, one_flooding_peer_does_not_starve_another) {
  auto [ours, theirs] = socket_pair();
  std::atomic<bool> stop = false;
  std::thread flood([&, fd = peer.get()] {
    std::string many;
    for (int count = 0; count < 1000; ++count) many += encode_frame("flood", 0);
    while (!stop && ::send(fd, many.data(), many.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  EXPECT_TRUE(run_until(loop, [this] { return bodies.size() > 10000; }));
  std::optional<std::string> quiet;
  Connection other(loop, std::move(ours), kBodyCap, {[&](Parcel parcel) { quiet = parcel.body; }, nullptr, nullptr});
  send_blocking(theirs.get(), "me too");
  EXPECT_TRUE(run_until(loop, [&] { return quiet.has_value(); }));
  stop = true;
  connection->close("enough");
  run_turns(loop);
  flood.join();
}

}  // namespace ddip::net
