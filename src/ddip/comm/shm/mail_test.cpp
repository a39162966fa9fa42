#include "ddip/comm/shm/mail.h"

#include <gtest/gtest.h>

#include <future>
#include <random>

#include "ddip/base/error.h"
#include "ddip/comm/shm/collectives.h"

namespace ddip::comm::shm {
namespace {

using namespace std::chrono_literals;

class MailTest : public testing::Test {
 protected:
  explicit MailTest(int world = 3, std::chrono::milliseconds patience = 20s)
      : segment(Segment::create(world, 4u << 20)) {
    for (int rank = 0; rank < world; ++rank) {
      ranks.push_back(std::make_unique<Collectives>(segment, rank, patience));
      mail.push_back(ranks.back()->open_mail());
    }
  }

  struct Pending {
    std::future<int> peer;
    int get() { return peer.get(); }
  };
  Mail::Done done(Pending& pending) {
    auto promise = std::make_shared<std::promise<int>>();
    pending.peer = promise->get_future();
    return [promise](std::exception_ptr error, int peer) {
      error ? promise->set_exception(error) : promise->set_value(peer);
    };
  }
  Pending send(size_t from, int to, const std::vector<uint8_t>& data, int64_t tag = 0) {
    Pending pending;
    mail[from]->send(to, tag, data.data(), data.size(), done(pending));
    return pending;
  }
  Pending receive(size_t rank, int from, std::vector<uint8_t>& data, int64_t tag = 0) {
    Pending pending;
    mail[rank]->receive(from, tag, data.data(), data.size(), done(pending));
    return pending;
  }

  Segment segment;
  std::vector<std::unique_ptr<Collectives>> ranks;
  std::vector<std::unique_ptr<comm::Mail>> mail;
};

class ImpatientMailTest : public MailTest {
 protected:
  ImpatientMailTest() : MailTest(2, 50ms) {}
};

// Few enough that a core is left for who waits.
class TwoMailTest : public MailTest {
 protected:
  TwoMailTest() : MailTest(2) {}
};

std::vector<uint8_t> noise(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> data(bytes);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  return data;
}

}  // namespace

TEST_F(MailTest, any_size_arrives_whole_and_in_order) {
  std::vector<std::vector<uint8_t>> sent, got;
  std::vector<Pending> pending;
  for (size_t bytes : {0u, 1u, 100u, 65535u, 65536u, 1000000u, 3u}) {
    sent.push_back(noise(bytes, static_cast<unsigned>(bytes)));
    got.emplace_back(bytes);
  }
  for (auto& data : sent) pending.push_back(send(0, 1, data));
  for (auto& data : got) pending.push_back(receive(1, 0, data));
  for (auto& one : pending) one.get();
  EXPECT_EQ(got, sent);
}

TEST_F(MailTest, both_send_large_ones_first_and_nobody_hangs) {
  auto a = noise(3000000, 1), b = noise(3000000, 2);
  std::vector<uint8_t> at_one(a.size()), at_zero(b.size());
  auto first = send(0, 1, a), second = send(1, 0, b);
  auto third = receive(0, 1, at_zero), fourth = receive(1, 0, at_one);
  for (auto* one : {&first, &second, &third, &fourth}) one->get();
  EXPECT_EQ(at_one, a);
  EXPECT_EQ(at_zero, b);
}

TEST_F(MailTest, one_receiver_that_does_not_come_holds_up_nobody_else) {
  auto large = noise(1000000, 3), small = noise(10, 4);
  auto stuck = send(0, 1, large);
  std::vector<uint8_t> got(10);
  auto other = send(0, 2, small);
  auto received = receive(2, 0, got);
  received.get();
  EXPECT_EQ(got, small);
  std::vector<uint8_t> late(large.size());
  receive(1, 0, late).get();
  stuck.get();
  EXPECT_EQ(late, large);
}

TEST_F(MailTest, tags_may_be_asked_for_in_any_order) {
  auto one = noise(100, 5), two = noise(200000, 6), again = noise(100, 7);
  auto a = send(0, 1, one, 1), b = send(0, 1, two, 2), c = send(0, 1, again, 1);
  std::vector<uint8_t> got_two(two.size()), got_one(100), got_again(100);
  receive(1, 0, got_two, 2).get();
  receive(1, 0, got_one, 1).get();
  receive(1, 0, got_again, 1).get();
  EXPECT_EQ(got_two, two);
  EXPECT_EQ(got_one, one);
  EXPECT_EQ(got_again, again);
}

TEST_F(MailTest, from_anybody_says_from_whom) {
  std::vector<uint8_t> first(4), second(4);
  auto one = receive(1, kAnyRank, first), two = receive(1, kAnyRank, second);
  auto data = noise(4, 8);
  auto sent = send(2, 1, data);
  EXPECT_EQ(one.get(), 2);
  EXPECT_EQ(first, data);
  send(0, 1, data).get();
  EXPECT_EQ(two.get(), 0);
}

TEST_F(MailTest, different_sizes_are_an_error_and_the_next_message_is_fine) {
  auto data = noise(10, 9), next = noise(20, 10);
  auto a = send(0, 1, data), b = send(0, 1, next);
  std::vector<uint8_t> wrong(11), right(20);
  auto failed = receive(1, 0, wrong);
  EXPECT_THROW(failed.get(), ConfigError);
  receive(1, 0, right).get();
  EXPECT_EQ(right, next);
}

TEST_F(ImpatientMailTest, nobody_waits_longer_than_the_deadline) {
  std::vector<uint8_t> data(4), large(1000000);
  EXPECT_THROW(receive(1, 0, data).get(), TimedOut);
  EXPECT_THROW(send(0, 1, large).get(), TimedOut);
}

TEST_F(MailTest, another_patience_counts_from_the_next_message) {
  auto large = noise(1000000, 1);
  std::vector<uint8_t> data(4), got(large.size());
  auto earlier = send(0, 1, large);
  mail[0]->set_patience(50ms);
  EXPECT_THROW(receive(0, 1, data).get(), TimedOut);
  EXPECT_THROW(send(0, 1, data).get(), TimedOut) << "what is before it has more time";
  auto received = receive(1, 0, got);
  EXPECT_EQ(received.get(), 0);
  EXPECT_EQ(earlier.get(), 1);
  EXPECT_EQ(got, large);
}

TEST_F(MailTest, mail_that_is_opened_later_has_the_patience_of_now) {
  mail[0].reset();
  ranks[0]->set_patience(50ms);
  mail[0] = ranks[0]->open_mail();
  std::vector<uint8_t> data(4);
  EXPECT_THROW(receive(0, 1, data).get(), TimedOut);
}

TEST_F(ImpatientMailTest, half_a_message_is_not_waited_for_any_longer_than_none) {
  std::vector<uint8_t> large(1000000), got(large.size());
  auto stuck = send(0, 1, large);
  while (segment.line(1).bell.rung == 0) std::this_thread::yield();  // as much as the ring takes is in it
  mail[0].reset();
  EXPECT_THROW(stuck.get(), PeerLost);
  EXPECT_THROW(receive(1, 0, got).get(), TimedOut);
  EXPECT_THROW(receive(1, 0, got).get(), PeerLost) << "and nobody reads on in the middle of it";
}

TEST(Mail, abort_in_the_middle_of_large_messages_harms_nobody) {
  for (int round = 0; round < 50; ++round) {
    Segment segment = Segment::create(2, 4u << 20);
    Collectives zero(segment, 0, 20s), one(segment, 1, 20s);
    auto from = zero.open_mail(), to = one.open_mail();
    std::vector<uint8_t> data(30000000), got(data.size());
    std::promise<void> sent, received;
    from->send(1, 0, data.data(), data.size(), [&](std::exception_ptr, int) { sent.set_value(); });
    to->receive(0, 0, got.data(), got.size(), [&](std::exception_ptr, int) { received.set_value(); });
    while (segment.line(1).bell.rung < 20) std::this_thread::yield();
    segment.poison(kAborted);
    sent.get_future().get();
    received.get_future().get();
  }
}

TEST_F(MailTest, lost_rank_ends_every_wait) {
  std::vector<uint8_t> data(4);
  auto waiting = receive(1, 0, data);
  segment.poison(1 + 2);
  EXPECT_THROW(waiting.get(), PeerLost);
}

TEST_F(MailTest, who_left_sends_no_more_but_what_it_sent_arrives) {
  auto data = noise(4, 11);
  send(0, 1, data).get();
  segment.leave(0);
  std::vector<uint8_t> got(4), never(4);
  receive(1, 0, got).get();
  EXPECT_EQ(got, data);
  EXPECT_THROW(receive(1, 0, never).get(), PeerLost);
}

TEST_F(MailTest, what_does_not_fit_is_not_sent_to_who_left) {
  auto data = noise(1u << 20, 12);  // more than a ring holds
  auto before = send(0, 1, data), other = send(0, 2, data);
  segment.leave(1);
  EXPECT_THROW(before.get(), PeerLost);
  EXPECT_THROW(send(0, 1, data).get(), PeerLost);
  std::vector<uint8_t> got(data.size());
  receive(2, 0, got).get();
  EXPECT_EQ(got, data) << "the others are not concerned";
  other.get();
}

TEST_F(MailTest, when_all_have_left_any_of_them_sends_no_more) {
  auto data = noise(4, 13);
  std::vector<uint8_t> got(4), never(4);
  auto first = receive(2, kAnyRank, got), second = receive(2, kAnyRank, never);
  segment.leave(0);
  send(1, 2, data).get();
  first.get();
  EXPECT_EQ(got, data);
  segment.leave(1);
  EXPECT_THROW(second.get(), PeerLost);
}

TEST_F(MailTest, nonsense_is_refused_at_once) {
  std::vector<uint8_t> data(4);
  EXPECT_THROW(send(0, 0, data), ConfigError);
  EXPECT_THROW(send(0, 3, data), ConfigError);
  EXPECT_THROW(receive(0, -2, data), ConfigError);
}

// Who waits takes its message itself.
TEST_F(TwoMailTest, who_helps_moves_messages_and_nothing_is_left_behind) {
  std::atomic<int> here{0};
  std::vector<std::vector<uint8_t>> got(200, std::vector<uint8_t>(3000)), sent;
  for (int i = 0; i < 200; ++i) sent.push_back(noise(3000, i));
  std::thread sender([&] {
    for (auto& one : sent) send(0, 1, one).get();
  });
  for (int i = 0; i < 200; ++i) {
    mail[1]->receive(0, 0, got[i].data(), got[i].size(), [&](std::exception_ptr error, int) {
      EXPECT_FALSE(error);
      ++here;
    });
    while (here <= i) mail[1]->help([&] { return here > i; });
  }
  sender.join();
  EXPECT_EQ(got, sent);
  EXPECT_EQ(segment.line(1).bell.watchers.load(), 0U);
  // Afterwards the thread of ours is woken again.
  auto last = noise(5, 1);
  std::vector<uint8_t> end(5);
  auto received = receive(1, 0, end);
  send(0, 1, last).get();
  received.get();
  EXPECT_EQ(end, last);
}

TEST_F(MailTest, what_a_message_sets_off_may_be_sent_at_once) {
  auto ping = noise(100000, 1);
  std::vector<uint8_t> there(ping.size()), back(ping.size());
  auto returned = receive(0, 1, back);
  mail[1]->receive(0, 0, there.data(), there.size(), [&](std::exception_ptr, int) {
    mail[1]->send(0, 0, there.data(), there.size(), [](std::exception_ptr, int) {});
  });
  send(0, 1, ping).get();
  returned.get();
  EXPECT_EQ(back, ping);
}

}  // namespace ddip::comm::shm
