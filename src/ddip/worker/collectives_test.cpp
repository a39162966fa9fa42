#include "ddip/worker/collectives.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "ddip/base/fd.h"
#include "ddip/net/local_socket.h"

namespace ddip::worker {
namespace {

// Two ends of a TCP connection on loopback, as Gloo makes them.
struct Connected {
  Connected() {
    auto [listening, number] = net::listen_on_loopback(0);
    listener = std::move(listening);
    port = number;
    ours.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(ours.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    theirs.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  // Whether the far end still waits for bytes, rather than seeing the end.
  bool open() const {
    char byte;
    return ::recv(theirs.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }

  Fd listener, ours, theirs;
  int port = 0;
};

}  // namespace

TEST(Collectives, what_is_entered_is_current_until_it_is_left_and_counted_by_group) {
  Collectives collectives;
  EXPECT_FALSE(collectives.current());
  collectives.enter("all_reduce", "default");
  collectives.leave();
  collectives.enter("broadcast", "other");
  collectives.leave();
  auto before = std::chrono::steady_clock::now();
  collectives.enter("all_gather", "default");
  auto in = collectives.current();
  ASSERT_TRUE(in);
  EXPECT_EQ(in->operation, "all_gather");
  EXPECT_EQ(in->group, "default");
  EXPECT_EQ(in->number, 2u);
  EXPECT_GE(in->since, before);
  collectives.leave();
  EXPECT_FALSE(collectives.current());
}

TEST(Collectives, abort_shuts_down_the_groups_sockets_and_no_others) {
  Collectives collectives;
  Connected mine, also_mine, other_group, strangers;
  collectives.add_group("mine", {mine.ours.get()});
  collectives.add_group("mine", {also_mine.ours.get()});
  collectives.add_group("other", {other_group.ours.get()});
  EXPECT_EQ(collectives.abort("mine"), 2);
  EXPECT_FALSE(mine.open());
  EXPECT_FALSE(also_mine.open());
  EXPECT_TRUE(other_group.open());
  EXPECT_TRUE(strangers.open());
  EXPECT_EQ(collectives.dead_groups(), std::vector<std::string>{"mine"});
  char byte;
  EXPECT_EQ(::recv(mine.ours.get(), &byte, 1, 0), 0) << "a blocked read on our side ends too";
}

TEST(Collectives, abort_without_a_name_shuts_down_all_groups) {
  Collectives collectives;
  Connected one, two, strangers;
  collectives.add_group("one", {one.ours.get()});
  collectives.add_group("two", {two.ours.get()});
  EXPECT_EQ(collectives.abort(""), 2);
  EXPECT_FALSE(one.open());
  EXPECT_FALSE(two.open());
  EXPECT_TRUE(strangers.open());
  EXPECT_EQ(collectives.dead_groups(), (std::vector<std::string>{"one", "two"}));
}

TEST(Collectives, abort_of_an_unknown_group_does_nothing) {
  Collectives collectives;
  Connected one;
  collectives.add_group("one", {one.ours.get()});
  EXPECT_EQ(collectives.abort("none such"), 0);
  EXPECT_TRUE(one.open());
  EXPECT_TRUE(collectives.dead_groups().empty());
}

TEST(Collectives, descriptor_that_was_reused_is_not_touched) {
  Collectives collectives;
  auto gone = std::make_unique<Connected>();
  int number = gone->ours.get();
  collectives.add_group("group", {number});
  gone.reset();
  Connected fresh;
  Fd moved(::dup2(fresh.ours.get(), number));  // the user's own connection now has that number
  ASSERT_EQ(moved.get(), number);
  EXPECT_EQ(collectives.abort("group"), 0);
  EXPECT_TRUE(fresh.open());
}

TEST(Collectives, what_is_no_socket_is_never_touched) {
  Collectives collectives;
  collectives.add_group("group", {0, -1, 9999});
  EXPECT_EQ(collectives.abort("group"), 0);
}

TEST(Collectives, removed_group_is_neither_aborted_nor_dead) {
  Collectives collectives;
  Connected one;
  collectives.add_group("one", {one.ours.get()});
  collectives.enter("barrier", "one");
  collectives.abort("one");
  collectives.remove_group("one");
  EXPECT_TRUE(collectives.dead_groups().empty());
  Connected two;
  collectives.add_group("one", {two.ours.get()});
  collectives.enter("barrier", "one");
  EXPECT_EQ(collectives.current()->number, 1u) << "made anew, counted anew";
  EXPECT_TRUE(two.open());
}

TEST(Collectives, second_abort_names_the_group_once) {
  Collectives collectives;
  Connected one;
  collectives.add_group("one", {one.ours.get()});
  collectives.abort("one");
  collectives.abort("");
  EXPECT_EQ(collectives.dead_groups().size(), 1u);
}

TEST(Collectives, connected_sockets_are_tcp_connections_without_listeners_and_the_store) {
  std::vector<int> before = connected_sockets(-1);
  Connected group, store;
  auto [unix_one, unix_other] = net::socket_pair();
  std::vector<int> expected = before;
  for (int fd : {group.ours.get(), group.theirs.get()}) expected.push_back(fd);
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(connected_sockets(store.port), expected);
  // Of the two ends one leads there: the other belongs to whoever came.
  EXPECT_EQ(connections_to(store.port), std::vector<int>{store.ours.get()});
}

}  // namespace ddip::worker
