#include "ddip/launch/flag_values.h"

#include <gtest/gtest.h>

#include "ddip/base/testing/one_line.h"

namespace ddip::launch {
namespace {

FlagText given(const std::string& text) { return {"ddip --x " + shown(text), text}; }

TEST(Shown, keeps_a_message_on_one_line_and_short) {
  EXPECT_EQ(shown("plain"), "plain");
  EXPECT_EQ(shown(""), "''");
  EXPECT_EQ(shown("two words"), "'two words'");
  EXPECT_EQ(shown("a\nb\tc\x1b"), "a\\nb\\x09c\\x1b");
  EXPECT_EQ(shown(std::string(1000, 'x')), std::string(60, 'x') + "...");
}

TEST(Shown, never_cuts_a_letter_in_two) {
  const std::string umlaut = "\xc3\xbc";
  std::string text(59, 'x');
  for (int i = 0; i < 10; ++i) text += umlaut;
  EXPECT_EQ(shown(text), std::string(59, 'x') + "...");
}

TEST(Seconds, takes_numbers_and_units) {
  EXPECT_EQ(seconds(given("90"), "").count(), 90);
  EXPECT_EQ(seconds(given("1.5"), "").count(), 1.5);
  EXPECT_EQ(seconds(given("90s"), "").count(), 90);
  EXPECT_EQ(seconds(given("10m"), "").count(), 600);
  EXPECT_EQ(seconds(given("12h"), "").count(), 12 * 3600);
  EXPECT_EQ(seconds(given("0"), "never").count(), 0);
}

TEST(Seconds, refuses_what_is_no_time) {
  for (const std::string text : {"", "-1", "nan", "inf", "s", "h", "1x", "1e400", "400d", "ten", "1 s", "-0s", "0"}) {
    EXPECT_NE(config_error([&] { seconds(given(text), ""); }).find("expected"), std::string::npos) << text;
  }
  EXPECT_EQ(config_error([] { seconds(given("-1"), "never"); }),
            "ddip --x -1: expected seconds above 0, or a time such as 90s, 10m, 12h (0: never)");
}

TEST(OneOf, lists_the_choices_and_the_nearest) {
  EXPECT_EQ(one_of(given("keep"), {"keep", "stop"}), "keep");
  EXPECT_EQ(config_error([] { one_of(given("kepe"), {"keep", "stop"}); }),
            "ddip --x kepe: expected keep|stop; did you mean keep?");
}

TEST(Names, follow_their_rules) {
  EXPECT_TRUE(is_group_name("train_2-A"));
  EXPECT_TRUE(is_group_name(std::string(32, 'a')));
  for (const std::string text : {"", "a b", "a/b", "..", "\xc3\xbc"}) EXPECT_FALSE(is_group_name(text)) << text;
  EXPECT_FALSE(is_group_name(std::string(33, 'a')));

  for (const std::string text : {"x", "_1",
                                 "gr\xc3\xb6\xc3\x9f"
                                 "e"})
    EXPECT_TRUE(is_python_name(text)) << text;
  for (const std::string text : {"", "1x", "a-b", "a.b", "for", "None", "a b"}) {
    EXPECT_FALSE(is_python_name(text)) << text;
  }

  EXPECT_TRUE(is_variable_name("A_1"));
  for (const std::string text : {"", "1A", "A-B", "\xc3\xbc"}) EXPECT_FALSE(is_variable_name(text)) << text;
}

}  // namespace
}  // namespace ddip::launch
