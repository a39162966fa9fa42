#include "ddip/data/events.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ddip/base/crc32c.h"
#include "ddip/data/png.h"

namespace ddip::data {

TEST(Events, have_the_statistics_that_the_set_promises) {
  double background = 0;
  size_t showers = 0, tracks = 0;
  constexpr int kEvents = 300;
  for (uint64_t number = 0; number < kEvents; ++number) {
    Event event = make_event(1, number);
    ASSERT_EQ(event.image.size(), 256u * 256u);
    ASSERT_EQ(event.labels.size(), event.image.size());
    size_t empty = 0;
    for (size_t place = 0; place < event.image.size(); ++place) {
      ASSERT_LE(event.labels[place], 2);
      ASSERT_EQ(event.image[place] == 0, event.labels[place] == 0) << "a pixel has energy and a class, or neither";
      ASSERT_TRUE(event.image[place] == 0 || event.image[place] >= 10);
      empty += event.labels[place] == 0;
      showers += event.labels[place] == 1;
      tracks += event.labels[place] == 2;
    }
    double share = static_cast<double>(empty) / static_cast<double>(event.image.size());
    ASSERT_GT(share, 0.97) << number;
    ASSERT_LT(share, 1.0) << number;
    background += share / kEvents;
  }
  EXPECT_GT(background, 0.99);
  // Both kinds are there in numbers, neither drowns the other.
  EXPECT_GT(showers, tracks / 4);
  EXPECT_GT(tracks, showers / 4);
}

// Whoever changes the generator changes what accuracy means: that must not happen by accident.
TEST(Events, are_the_same_for_ever) {
  auto hash = [](uint64_t seed, uint64_t number) {
    Event event = make_event(seed, number);
    return crc32c({reinterpret_cast<const char*>(event.image.data()), event.image.size() * 4}) ^
           crc32c({reinterpret_cast<const char*>(event.labels.data()), event.labels.size()});
  };
  EXPECT_EQ(hash(0, 0), hash(0, 0));
  EXPECT_NE(hash(0, 0), hash(0, 1));
  EXPECT_NE(hash(0, 0), hash(1, 0));
  uint32_t together = 0;
  for (uint64_t number = 0; number < 20; ++number) together = together * 31 + hash(7, number);
  EXPECT_EQ(together, 2454228420u);
}

TEST(Png, has_the_sizes_and_sums_that_readers_check) {
  Picture picture(3, 2);
  picture.set(2, 1, 255, 0, 7);
  std::string png = encode_png(picture);
  EXPECT_TRUE(png.starts_with("\x89PNG\r\n\x1a\n"));
  EXPECT_TRUE(png.ends_with(std::string("IEND\xae\x42\x60\x82")));  // the sum that every PNG ends with
  EXPECT_NE(png.find(std::string("\0\0\0\x03\0\0\0\x02\x08\x02", 10)), std::string::npos);
}

}  // namespace ddip::data
