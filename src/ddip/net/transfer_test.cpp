#include "ddip/net/transfer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <string>

#include "ddip/base/error.h"
#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"

namespace ddip::net {
namespace {

Fd file_with(const std::string& text) {
  Fd file(::memfd_create("transfer_test", MFD_CLOEXEC));
  if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  return file;
}

std::string content(const Fd& file) {
  std::string text(100, '\0');
  ssize_t count = ::pread(file.get(), text.data(), text.size(), 0);
  return count < 0 ? "unreadable" : text.substr(0, static_cast<size_t>(count));
}

// "body:one,two" for each parcel.
std::vector<std::string> describe(const std::vector<Parcel>& parcels) {
  std::vector<std::string> words;
  for (const Parcel& parcel : parcels) {
    std::string word = parcel.body + ":";
    for (const Fd& file : parcel.descriptors) word += content(file) + ",";
    words.push_back(word);
  }
  return words;
}

std::vector<int> numbers(const std::vector<Fd>& files) {
  std::vector<int> result;
  for (const Fd& file : files) result.push_back(file.get());
  return result;
}

std::vector<Fd> files(const std::vector<std::string>& texts) {
  std::vector<Fd> result;
  for (const std::string& text : texts) result.push_back(file_with(text));
  return result;
}

}  // namespace

TEST(Transfer, bytes_and_descriptors_arrive_and_close_on_exec) {
  auto [ours, theirs] = socket_pair();
  std::vector<Fd> sent = files({"one", "two"});
  ASSERT_EQ(transmit(ours.get(), "hi", numbers(sent), 0), 2);
  std::string into(10, '\0');
  std::deque<Fd> received;
  ASSERT_EQ(receive(theirs.get(), into, received, 0), 2);
  EXPECT_EQ(into.substr(0, 2), "hi");
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(content(received[0]), "one");
  EXPECT_EQ(content(received[1]), "two");
  EXPECT_TRUE(::fcntl(received[0].get(), F_GETFD) & FD_CLOEXEC);
}

TEST(Transfer, frames_coalesced_in_the_socket_keep_their_own_descriptors) {
  auto [ours, theirs] = socket_pair();
  send_blocking(ours.get(), "a");
  send_blocking(ours.get(), "b", numbers(files({"1", "2"})));
  send_blocking(ours.get(), "c");
  send_blocking(ours.get(), "d", numbers(files({"3"})));
  send_blocking(ours.get(), "e", numbers(files({"4", "5", "6", "7", "8", "9", "10", "11"})));
  send_blocking(ours.get(), "f");
  BlockingReader reader(theirs.get());
  std::vector<std::string> seen;
  while (seen.size() < 6) {
    for (std::string& word : describe(reader.read_available())) seen.push_back(std::move(word));
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"a:", "b:1,2,", "c:", "d:3,", "e:4,5,6,7,8,9,10,11,", "f:"}));
}

TEST(Transfer, frame_that_comes_byte_by_byte_keeps_its_descriptors) {
  auto [ours, theirs] = socket_pair();
  std::vector<Fd> sent = files({"1", "2"});
  std::string bytes = encode_frame("slow", 2);
  BlockingReader reader(theirs.get());
  std::vector<std::string> seen;
  for (size_t at = 0; at < bytes.size(); ++at) {
    ASSERT_EQ(
        transmit(ours.get(), std::string_view(bytes).substr(at, 1), at == 0 ? numbers(sent) : std::vector<int>(), 0),
        1);
    for (std::string& word : describe(reader.read_available())) seen.push_back(std::move(word));
    ASSERT_EQ(seen.size(), at + 1 == bytes.size() ? 1u : 0u);
  }
  EXPECT_EQ(seen, std::vector<std::string>{"slow:1,2,"});
}

TEST(Transfer, end_of_one_frame_and_the_begin_of_the_next_in_one_read_keep_their_order) {
  auto [ours, theirs] = socket_pair();
  std::string first = encode_frame("first", 1), second = encode_frame("second", 1);
  BlockingReader reader(theirs.get());
  ASSERT_GT(transmit(ours.get(), first.substr(0, 10), numbers(files({"1"})), 0), 0);
  EXPECT_TRUE(reader.read_available().empty());
  ASSERT_GT(transmit(ours.get(), first.substr(10), {}, 0), 0);
  ASSERT_GT(transmit(ours.get(), second, numbers(files({"2"})), 0), 0);
  std::vector<std::string> seen;
  while (seen.size() < 2) {
    for (std::string& word : describe(reader.read_available())) seen.push_back(std::move(word));
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"first:1,", "second:2,"}));
}

TEST(Transfer, too_many_descriptors_are_refused_before_anything_is_sent) {
  auto [ours, theirs] = socket_pair();
  // 264 wraps to 8 in a byte: whoever only looks at the header's field overruns the control buffer.
  for (size_t count : {size_t{9}, size_t{255}, size_t{256}, size_t{264}}) {
    std::vector<int> same(count, 0);
    EXPECT_THROW(send_blocking(ours.get(), "body", same), ProtocolError) << count;
  }
  std::string into(10, '\0');
  std::deque<Fd> received;
  EXPECT_LT(receive(theirs.get(), into, received, MSG_DONTWAIT), 0);
}

TEST(Transfer, announced_descriptors_that_did_not_come_close_the_stream) {
  auto [ours, theirs] = socket_pair();
  ASSERT_GT(transmit(ours.get(), encode_frame("liar", 2), numbers(files({"only one"})), 0), 0);
  BlockingReader reader(theirs.get());
  EXPECT_THROW(reader.read_available(), ProtocolError);
}

TEST(Transfer, descriptors_that_no_frame_announces_do_not_pile_up) {
  auto [ours, theirs] = socket_pair();
  std::vector<Fd> some = files({"1", "2", "3", "4", "5", "6", "7", "8"});
  BlockingReader reader(theirs.get());
  auto flood = [&] {
    for (int round = 0; round < 10; ++round) {
      ASSERT_GT(transmit(ours.get(), encode_frame("no descriptors, it says", 0), numbers(some), 0), 0);
      reader.read_available();
    }
  };
  EXPECT_THROW(flood(), ProtocolError);
}

TEST(Transfer, descriptors_lost_to_the_limit_are_an_error_not_a_surprise) {
  auto [ours, theirs] = socket_pair();
  std::vector<Fd> some = files({"1", "2", "3", "4"});
  ASSERT_GT(transmit(ours.get(), "x", numbers(some), 0), 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  Fd highest = some.back().duplicate();
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(highest.get()) + 2;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::string into(10, '\0');
  std::deque<Fd> received;
  std::string why;
  try {
    receive(theirs.get(), into, received, 0);
  } catch (const ProtocolError& error) {
    why = error.what();
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_NE(why.find("lost on the way"), std::string::npos);
}

}  // namespace ddip::net
