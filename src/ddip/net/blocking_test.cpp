#include "ddip/net/blocking.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "ddip/base/error.h"
#include "ddip/net/local_socket.h"
#include "ddip/net/transfer.h"

namespace ddip::net {
namespace {

std::vector<std::string> read_bodies(BlockingReader& reader, size_t count) {
  std::vector<std::string> bodies;
  while (bodies.size() < count) {
    for (Parcel& parcel : reader.read_available()) bodies.push_back(std::move(parcel.body));
  }
  return bodies;
}

}  // namespace

TEST(Blocking, largest_body_passes_through_a_small_socket) {
  auto [ours, theirs] = socket_pair();
  std::string large(kBodyCap, 'b');
  for (size_t at = 0; at < large.size(); at += 4093) large[at] = static_cast<char>(at);
  std::thread sender([&, fd = ours.get()] {
    send_blocking(fd, large);
    send_blocking(fd, "small");
  });
  BlockingReader reader(theirs.get());
  std::vector<std::string> bodies = read_bodies(reader, 2);
  sender.join();
  EXPECT_TRUE(bodies[0] == large);
  EXPECT_EQ(bodies[1], "small");
}

TEST(Blocking, sender_waits_on_a_non_blocking_socket_too) {
  auto [ours, theirs] = socket_pair();
  ASSERT_EQ(::fcntl(ours.get(), F_SETFL, O_NONBLOCK), 0);
  std::string large(4u << 20, 'b');
  std::thread sender([&, fd = ours.get()] { send_blocking(fd, large); });
  BlockingReader reader(theirs.get());
  EXPECT_TRUE(read_bodies(reader, 1)[0] == large);
  sender.join();
}

TEST(Blocking, end_of_stream_is_a_lost_peer_after_the_last_frame) {
  auto [ours, theirs] = socket_pair();
  send_blocking(ours.get(), "last words");
  ours.reset();
  BlockingReader reader(theirs.get());
  EXPECT_EQ(read_bodies(reader, 1)[0], "last words");
  EXPECT_THROW(reader.read_available(), PeerLost);
}

TEST(Blocking, sending_to_nobody_is_a_lost_peer_and_no_signal) {
  auto [ours, theirs] = socket_pair();
  theirs.reset();
  EXPECT_THROW(send_blocking(ours.get(), "hello?"), PeerLost);
}

TEST(Blocking, garbage_is_a_protocol_error) {
  auto [ours, theirs] = socket_pair();
  ASSERT_GT(transmit(ours.get(), std::string(100, 'g'), {}, 0), 0);
  BlockingReader reader(theirs.get());
  EXPECT_THROW(reader.read_available(), ProtocolError);
}

}  // namespace ddip::net
