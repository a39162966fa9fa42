#include "ddip/schedule/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddip::schedule {
namespace {

using ::testing::HasSubstr;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Draw, text_is_the_familiar_grid) {
  const Plan plan = make_plan({.schedule = "1f1b", .stages = 2, .micro_batches = 3});
  EXPECT_EQ(draw_text(plan, simulate(plan), 100),
            "stage  0 |F0 F1 ......B0=== F2 B1=== ...B2=== \n"
            "         |                                    ^\n"
            "stage  1 |...F0 B0=== F1 B1=== F2 B2=== ......\n"
            "         |                              ^\n"
            "F forward, B backward, W weight gradient, ^ step, . idle; 75% of the time computing\n");
}

TEST(Draw, a_long_text_is_cut_off_and_says_so) {
  const Plan plan = make_plan({.schedule = "seq", .stages = 2, .micro_batches = 30});
  const std::string text = draw_text(plan, simulate(plan), 60);
  for (size_t begin = 0; begin < text.find("F forward"); begin = text.find('\n', begin) + 1)
    EXPECT_LE(text.find('\n', begin) - begin, 60u);
  EXPECT_THAT(text, HasSubstr("cut off: 50 of 720 columns are shown"));
}

TEST(Draw, the_picture_has_a_box_for_each_computation_and_a_bar_for_each_step) {
  Request request{.schedule = "zb1", .stages = 3, .micro_batches = 5, .batches = 2};
  const Plan plan = make_plan(request);
  const std::string svg = draw_svg(plan, simulate(plan));
  // One more of each in the legend.
  EXPECT_EQ(count(svg, "fill=\"#cfe3f7\" stroke"), 3u * 10 + 1);
  EXPECT_EQ(count(svg, "fill=\"url(#back)\""), 3u * 10 + 1);
  EXPECT_EQ(count(svg, "fill=\"url(#dots)\""), 3u * 10 + 1);
  EXPECT_EQ(count(svg, "fill=\"#333333\""), 3u * 2 + 1);
  EXPECT_EQ(count(svg, ">stage "), 3u);
  EXPECT_EQ(count(svg, "<svg"), count(svg, "</svg>"));
}

TEST(Draw, a_title_may_say_anything) {
  const Plan plan = make_plan({.schedule = "seq", .stages = 1, .micro_batches = 1});
  EXPECT_THAT(draw_svg(plan, simulate(plan), {.title = "a < b & c"}), HasSubstr(">a &lt; b &amp; c</text>"));
}

}  // namespace
}  // namespace ddip::schedule
