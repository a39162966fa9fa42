#include "ddip/wire/channel.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <deque>

#include "ddip/base/error.h"
#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"
#include "ddip/testing/run_until.h"

namespace ddip::wire {
namespace {

class ChannelTest : public testing::Test {
 protected:
  ChannelTest() {
    auto [ours, theirs] = net::socket_pair();
    peer = std::move(theirs);
    channel = std::make_unique<Channel>(
        loop, std::move(ours),
        Channel::Events{[this](Message message) {
                          received.push_back(std::move(message));
                          if (on_message) on_message(received.back());
                        },
                        [this](const std::string& reason) { closings.push_back(reason); }, nullptr});
  }

  void put(const std::string& body, const std::vector<int>& descriptors = {}) {
    net::send_blocking(peer.get(), body, descriptors);
  }
  bool closed() {
    return net::run_until(loop, [this] { return !closings.empty(); });
  }

  net::Loop loop;
  Fd peer;
  std::deque<Message> received;
  std::vector<std::string> closings;
  std::function<void(Message&)> on_message;
  std::unique_ptr<Channel> channel;
};

}  // namespace

TEST_F(ChannelTest, messages_with_descriptors_go_both_ways) {
  Fd file(::memfd_create("channel_test", MFD_CLOEXEC));
  ASSERT_EQ(::write(file.get(), "in", 2), 2);
  put(encode({Type::execute, 1, 2, 3, {{"code", "x"}}, {}}), {file.get()});
  ASSERT_TRUE(net::run_until(loop, [this] { return received.size() == 1; }));
  EXPECT_EQ(received[0].body.at("code"), "x");
  ASSERT_EQ(received[0].descriptors.size(), 1u);

  // Sent back as it came; it stays the sender's.
  channel->send(received[0]);
  net::BlockingReader reader(peer.get());
  net::Parcel parcel = std::move(reader.read_available().at(0));
  EXPECT_EQ(decode(parcel.body).id, 3u);
  ASSERT_EQ(parcel.descriptors.size(), 1u);
  char text[2];
  EXPECT_EQ(::pread(parcel.descriptors[0].get(), text, 2, 0), 2);
  EXPECT_TRUE(received[0].descriptors[0]);
}

TEST_F(ChannelTest, sound_frame_with_an_unsound_message_closes_with_the_reason) {
  put(encode({Type::info, 0, 0, 0, json::object(), {}}));
  put("not a message");
  put(encode({Type::info, 0, 0, 0, json::object(), {}}));
  EXPECT_TRUE(closed());
  EXPECT_EQ(received.size(), 1u);
  EXPECT_EQ(closings, std::vector<std::string>{"message cut short"});
}

TEST_F(ChannelTest, body_without_what_the_receiver_needs_closes_it_and_nothing_worse) {
  on_message = [](Message& message) { message.body.at("ranks").get<std::vector<int>>(); };
  put(encode({Type::execute, 0, 0, 0, {{"ranks", "all of them"}}, {}}));
  EXPECT_TRUE(closed());
  EXPECT_EQ(closings.size(), 1u);
}

TEST_F(ChannelTest, descriptors_that_nobody_took_are_closed_with_the_message) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Fd kept(ends[0]), given(ends[1]);
  put(encode({Type::done, 0, 0, 0, json::object(), {}}), {given.get()});
  given.reset();
  ASSERT_TRUE(net::run_until(loop, [this] { return received.size() == 1; }));
  received.clear();
  char byte;
  EXPECT_EQ(::recv(kept.get(), &byte, 1, MSG_DONTWAIT), 0) << "somebody still holds the other end";
}

TEST_F(ChannelTest, one_encoding_may_go_to_many) {
  std::string bytes = encode({Type::why, kNoRank, 0, 9, json::object(), {}});
  channel->send_encoded(bytes, {});
  channel->send_encoded(bytes, {});
  net::BlockingReader reader(peer.get());
  size_t seen = 0;
  while (seen < 2) {
    for (const net::Parcel& parcel : reader.read_available()) seen += parcel.body == bytes ? 1 : 100;
  }
  EXPECT_EQ(seen, 2u);
}

}  // namespace ddip::wire
