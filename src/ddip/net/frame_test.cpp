#include "ddip/net/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ddip/base/crc32c.h"
#include "ddip/base/error.h"

namespace ddip::net {
namespace {

// A frame whose checksum is right, whatever its fields say: only the field under test is wrong.
struct Forged {
  std::string magic = "DDIP";
  uint8_t version = 1;
  uint8_t descriptors = 0;
  uint16_t reserved = 0;
  uint32_t length = 4;
  std::string body = "body";

  std::string bytes() const {
    std::string out = magic;
    out.push_back(static_cast<char>(version));
    out.push_back(static_cast<char>(descriptors));
    out.append(reinterpret_cast<const char*>(&reserved), 2);
    out.append(reinterpret_cast<const char*>(&length), 4);
    uint32_t sum = crc32c(body, crc32c(out));
    out.append(reinterpret_cast<const char*>(&sum), 4);
    return out + body;
  }
};

// The reason for which the reader refuses these bytes; "" if it does not.
std::string refusal(std::string_view bytes, uint32_t cap = kBodyCapBeforeHello) {
  FrameReader reader(cap);
  reader.feed(bytes);
  try {
    while (reader.next()) {
    }
  } catch (const ProtocolError& error) {
    return error.what();
  }
  return "";
}

std::string header_only(Forged forged) { return forged.bytes().substr(0, kHeaderBytes); }

}  // namespace

TEST(Frame, header_is_the_sixteen_documented_bytes) {
  EXPECT_EQ(encode_frame("body", 3), (Forged{.descriptors = 3}).bytes());
}

TEST(Frame, reads_back_what_was_written) {
  FrameReader reader(kBodyCap);
  std::string all(256, '\0');
  for (int byte = 0; byte < 256; ++byte) all[static_cast<size_t>(byte)] = static_cast<char>(byte);
  reader.feed(encode_frame(all, 8) + encode_frame("x", 0));
  auto first = reader.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->body, all);
  EXPECT_EQ(first->descriptors, 8);
  auto second = reader.next();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->body, "x");
  EXPECT_EQ(second->descriptors, 0);
  EXPECT_FALSE(reader.next());
}

TEST(Frame, nothing_comes_before_the_last_byte) {
  std::string bytes = encode_frame("a body", 0);
  FrameReader reader(kBodyCap);
  for (size_t at = 0; at + 1 < bytes.size(); ++at) {
    reader.feed(bytes.substr(at, 1));
    ASSERT_FALSE(reader.next()) << at;
  }
  reader.feed(bytes.substr(bytes.size() - 1));
  EXPECT_TRUE(reader.next());
}

TEST(Frame, every_malformed_header_is_refused_with_its_reason_before_any_body_came) {
  EXPECT_EQ(refusal(header_only({.magic = "DDIQ"})), "bad magic: this is not a ddip stream");
  EXPECT_EQ(refusal("GET / HTTP/1.1\r\n"), "bad magic: this is not a ddip stream");
  EXPECT_EQ(refusal(header_only({.version = 0})), "frame version 0, expected 1");
  EXPECT_EQ(refusal(header_only({.version = 2})), "frame version 2, expected 1");
  EXPECT_EQ(refusal(header_only({.version = 255})), "frame version 255, expected 1");
  EXPECT_EQ(refusal(header_only({.descriptors = 9})), "9 descriptors in one frame");
  EXPECT_EQ(refusal(header_only({.descriptors = 255})), "255 descriptors in one frame");
  EXPECT_EQ(refusal(header_only({.reserved = 1})), "reserved header bytes are not zero");
  EXPECT_EQ(refusal(header_only({.reserved = 0x8000})), "reserved header bytes are not zero");
  EXPECT_EQ(refusal(header_only({.length = 0})), "frame without a body");
  for (uint32_t length : {kBodyCapBeforeHello + 1, kBodyCap, 1u << 31, UINT32_MAX}) {
    EXPECT_NE(refusal(header_only({.length = length})).find("over the cap of 65536"), std::string::npos) << length;
  }
  for (uint32_t length : {kBodyCap + 1, 1u << 31, UINT32_MAX}) {
    EXPECT_NE(refusal(header_only({.length = length}), kBodyCap).find("over the cap of 16777216"), std::string::npos)
        << length;
  }
}

TEST(Frame, length_at_the_cap_and_just_under_it_is_taken) {
  for (uint32_t cap : {1u, 1000u, kBodyCapBeforeHello, kBodyCap}) {
    for (uint32_t length : {cap, cap - 1}) {
      if (length == 0) continue;
      FrameReader reader(cap);
      reader.feed(encode_frame(std::string(length, 'b'), 0));
      auto frame = reader.next();
      ASSERT_TRUE(frame) << length;
      EXPECT_EQ(frame->body.size(), length);
    }
  }
}

TEST(Frame, larger_bodies_are_taken_only_after_the_cap_was_raised) {
  std::string large = encode_frame(std::string(kBodyCapBeforeHello + 1, 'b'), 0);
  FrameReader reader(kBodyCapBeforeHello);
  reader.feed(encode_frame("hello", 0));
  ASSERT_TRUE(reader.next());
  EXPECT_NE(refusal(large), "");
  reader.raise_cap(kBodyCap);
  reader.feed(large);
  EXPECT_TRUE(reader.next());
}

TEST(Frame, flipped_bit_anywhere_is_noticed) {
  const std::string good = encode_frame("sixteen bytes and a body", 2);
  const std::string more = encode_frame(std::string(60000, 'm'), 0);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    FrameReader reader(kBodyCapBeforeHello);
    reader.feed(bad);
    // A flipped length may make the reader wait for bytes that belong to later frames; the sum is wrong all the same.
    auto read = [&] {
      for (int round = 0; round < 3; ++round) {
        ASSERT_FALSE(reader.next()) << "bit " << bit;
        reader.feed(more);
      }
    };
    EXPECT_THROW(read(), ProtocolError) << "bit " << bit;
  }
}

TEST(Frame, flipped_bit_leaves_the_frames_before_it_whole) {
  std::string stream = encode_frame("first", 0) + encode_frame("second", 0);
  stream.back() = static_cast<char>(stream.back() ^ 1);
  FrameReader reader(kBodyCap);
  reader.feed(stream);
  EXPECT_EQ(reader.next()->body, "first");
  EXPECT_THROW(reader.next(), ProtocolError);
}

TEST(Frame, truncated_at_every_byte_gives_nothing) {
  const std::string good = encode_frame("cut me", 1);
  for (size_t length = 0; length < good.size(); ++length) {
    FrameReader reader(kBodyCap);
    reader.feed(std::string_view(good).substr(0, length));
    EXPECT_FALSE(reader.next()) << length;
  }
}

TEST(Frame, what_could_not_be_read_is_not_written_either) {
  EXPECT_NO_THROW(encode_frame(std::string(kBodyCap, 'b'), 0));
  EXPECT_THROW(encode_frame(std::string(kBodyCap + 1, 'b'), 0), ProtocolError);
  EXPECT_THROW(encode_frame("", 0), ProtocolError);
  EXPECT_NO_THROW(encode_frame("b", kMaxDescriptors));
  EXPECT_THROW(encode_frame("b", kMaxDescriptors + 1), ProtocolError);
}

}  // namespace ddip::net
