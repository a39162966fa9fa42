#include "ddip/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace ddip {

TEST(Crc32c, agrees_with_the_published_check_values) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);              // RFC 3720's polynomial, the usual check value
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);    // RFC 3720, B.4: 32 bytes of zeroes
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);  // RFC 3720, B.4: 32 bytes of ones
}

TEST(Crc32c, continues_where_it_was_cut) {
  std::string text = "the quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    std::string_view view = text;
    EXPECT_EQ(crc32c(view.substr(cut), crc32c(view.substr(0, cut))), crc32c(text));
  }
}

}  // namespace ddip
