#include "ddip/wire/messagepack_check.h"

#include <gtest/gtest.h>

#include <string>

#include "ddip/base/error.h"

namespace ddip::wire {
namespace {

std::string refusal(const std::string& bytes, int max_depth = 32) {
  try {
    check_messagepack(bytes, max_depth);
  } catch (const ProtocolError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(MessagepackCheck, every_tag_takes_exactly_its_bytes) {
  struct Case {
    std::string header;  // tag and length
    size_t follows;
  };
  const Case cases[] = {{"\x7f", 0},
                        {"\xff", 0},
                        {"\xe0", 0},
                        {"\xc0", 0},
                        {"\xc2", 0},
                        {"\xc3", 0},
                        {"\xcc", 1},
                        {"\xd0", 1},
                        {"\xcd", 2},
                        {"\xd1", 2},
                        {"\xce", 4},
                        {"\xd2", 4},
                        {"\xca", 4},
                        {"\xcf", 8},
                        {"\xd3", 8},
                        {"\xcb", 8},
                        {"\xa3", 3},
                        {"\xbf", 31},
                        {"\xd9\x05", 5},
                        {std::string("\xda\x01\x00", 3), 256},
                        {std::string("\xdb\x00\x01\x00\x00", 5), 65536},
                        {"\xc4\x05", 5},
                        {std::string("\xc5\x01\x00", 3), 256},
                        {std::string("\xc6\x00\x01\x00\x00", 5), 65536},
                        // Containers, filled with zeros: each a small integer.
                        {"\x93", 3},
                        {"\x83", 6},
                        {std::string("\xdc\x00\x04", 3), 4},
                        {std::string("\xdd\x00\x00\x00\x05", 5), 5},
                        {std::string("\xde\x00\x02", 3), 4},
                        {std::string("\xdf\x00\x00\x00\x03", 5), 6}};
  for (const Case& one : cases) {
    std::string exact = one.header + std::string(one.follows, '\0');
    unsigned tag = static_cast<uint8_t>(one.header[0]);
    EXPECT_EQ(refusal(exact), "") << std::hex << tag;
    EXPECT_EQ(refusal(exact + '\0'), "bytes after the message's body") << std::hex << tag;
    for (size_t cut = 0; cut < exact.size(); cut += cut < 64 ? 1 : 997)
      EXPECT_EQ(refusal(exact.substr(0, cut)), "message cut short") << std::hex << tag << " " << cut;
  }
}

TEST(MessagepackCheck, depth_counts_open_containers_not_containers) {
  EXPECT_EQ(refusal("\x90", 1), "");
  EXPECT_EQ(refusal("\x91\x90", 1), "message nested too deeply");
  EXPECT_EQ(refusal("\x91\x90", 2), "");
  // Thousands side by side are no depth.
  EXPECT_EQ(refusal(std::string("\xdc\x27\x10", 3) + std::string(10000, '\x90'), 2), "");
  EXPECT_EQ(refusal("\x01", 0), "");
  EXPECT_EQ(refusal("\x90", 0), "message nested too deeply");
}

TEST(MessagepackCheck, nothing_at_all_is_cut_short) { EXPECT_EQ(refusal(""), "message cut short"); }

}  // namespace ddip::wire
