#include "ddip/client/terminal.h"

#include <gtest/gtest.h>

namespace ddip::client {
namespace {

using Lines = std::vector<std::string>;

Lines settled(Terminal& terminal) {
  Lines lines;
  for (auto& line : terminal.take_settled()) lines.push_back(line.text);
  return lines;
}

std::string all_settled(std::string_view bytes) {
  Terminal terminal;
  terminal.write(bytes);
  terminal.finish();
  std::string text;
  for (auto& line : terminal.take_settled()) text += line.text;
  return text;
}

TEST(Terminal, ordinary_lines_settle_at_their_newline) {
  Terminal terminal;
  terminal.write("one\n\ntwo\nthr");
  EXPECT_EQ(settled(terminal), (Lines{"one\n", "\n", "two\n"}));
  EXPECT_EQ(terminal.live(), (Lines{"thr"}));
  terminal.write("ee\n");
  EXPECT_EQ(settled(terminal), (Lines{"three\n"}));
  EXPECT_TRUE(terminal.live().empty());
}

TEST(Terminal, finish_settles_a_line_without_newline_as_it_is) {
  EXPECT_EQ(all_settled("a\nb "), "a\nb ");
  EXPECT_EQ(all_settled(""), "");
  EXPECT_EQ(all_settled("a\n"), "a\n");
}

TEST(Terminal, carriage_return_and_newline_is_a_newline) {
  Terminal terminal;
  terminal.write("one\r\ntwo\r");
  terminal.write("\n");
  EXPECT_EQ(terminal.take_settled(), (std::vector<Terminal::Line>{{"one\n", false}, {"two\n", false}}));
}

TEST(Terminal, tabs_controls_and_invalid_bytes_are_text) {
  const std::string bytes("\t\x01\xff\xe2\x82\xc3(\0|\x80\n", 11);
  EXPECT_EQ(all_settled(bytes), bytes);
}

TEST(Terminal, backspace_overwrites_whole_code_points) {
  EXPECT_EQ(all_settled("a\u2588\u00e9\b\bxy\n"), "axy\n");
  EXPECT_EQ(all_settled("\b\bab\b\b\b\b\u2588\n"), "\u2588b\n");
}

TEST(Terminal, only_the_newest_frame_of_a_bar_is_live_and_its_last_settles_once) {
  Terminal terminal;
  terminal.write("\r  0%|  |");
  EXPECT_EQ(terminal.live(), (Lines{"  0%|  |"}));
  terminal.write("\r 50%|\u2588 |\r100%|\u2588\u2588|");
  EXPECT_EQ(terminal.live(), (Lines{"100%|\u2588\u2588|"}));
  EXPECT_TRUE(settled(terminal).empty());
  terminal.write("\nafter\n");
  EXPECT_EQ(terminal.take_settled(), (std::vector<Terminal::Line>{{"100%|\u2588\u2588|\n", true}, {"after\n", false}}));
}

TEST(Terminal, a_shorter_frame_padded_with_blanks_settles_without_them) {
  EXPECT_EQ(all_settled("\rlong frame\rshort     \n"), "short\n");
}

TEST(Terminal, bars_in_sequence_settle_one_after_the_other) {
  Terminal terminal;
  terminal.write("\r 0%\r100%\n\r 0% b");
  EXPECT_TRUE(settled(terminal).empty());  // could be a nested bar
  terminal.write("\r50% b");
  EXPECT_EQ(settled(terminal), (Lines{"100%\n"}));
  EXPECT_EQ(terminal.live(), (Lines{"50% b"}));
}

TEST(Terminal, nested_tqdm_bars_stay_live_and_leave_the_outer_one) {
  Terminal terminal;
  terminal.write("\router 0/2");
  for (const char* inner : {"inner 0/9", "inner 9/9"}) {
    terminal.write(std::string("\n\r") + inner + "\x1b[A");
    EXPECT_EQ(terminal.live(), (Lines{"outer 0/2", inner}));
  }
  terminal.write("\n\r         \x1b[A\router 1/2\n\rinner 0/9\x1b[A");
  EXPECT_EQ(terminal.live(), (Lines{"outer 1/2", "inner 0/9"}));
  EXPECT_TRUE(settled(terminal).empty());
  terminal.write("\n\r         \x1b[A\router 2/2\ndone\n");
  EXPECT_EQ(settled(terminal), (Lines{"outer 2/2\n", "done\n"}));
  EXPECT_TRUE(terminal.live().empty());
}

TEST(Terminal, nested_tqdm_inner_bars_that_stay_settle_as_the_outer_moves_down) {
  Terminal terminal;
  terminal.write("\router 0/9");
  for (int epoch = 1; epoch < 9; ++epoch) {
    const std::string n = std::to_string(epoch);
    terminal.write("\n\rinner " + n + "   0%\x1b[A\n\rinner " + n + "  50%\x1b[A");
    terminal.write("\rinner " + n + " 100%\n\router " + n + "/9    ");
    EXPECT_EQ(terminal.live().back(), "outer " + n + "/9");
    EXPECT_LE(terminal.live().size(), 2u);
  }
  Lines expected;
  for (int epoch = 1; epoch < 8; ++epoch) expected.push_back("inner " + std::to_string(epoch) + " 100%\n");
  EXPECT_EQ(settled(terminal), expected);
}

TEST(Terminal, a_line_written_above_a_tqdm_bar_settles) {
  Terminal terminal;
  terminal.write("\r 10%\r 20%");
  terminal.write("\r    \rmessage\n\r 20%\r 30%");
  EXPECT_EQ(terminal.take_settled(), (std::vector<Terminal::Line>{{"message\n", false}}));
  EXPECT_EQ(terminal.live(), (Lines{" 30%"}));
}

TEST(Terminal, rich_progress_redraws_several_lines_and_prints_above_them) {
  Terminal terminal;
  const std::string wipe = "\r\x1b[2K\x1b[1A\x1b[2K";
  terminal.write("start\n\x1b[?25l");
  terminal.write("a 0%\nb 0%" + wipe + "a 1%\nb 1%");
  EXPECT_EQ(settled(terminal), (Lines{"start\n"}));
  EXPECT_EQ(terminal.live(), (Lines{"a 1%", "b 1%"}));
  terminal.write(wipe + "log\na 2%\nb 2%");
  terminal.write(wipe + "a 3%\nb 3%");
  EXPECT_EQ(settled(terminal), (Lines{"log\n"}));
  EXPECT_EQ(terminal.live(), (Lines{"a 3%", "b 3%"}));
  terminal.write("\n\x1b[?25hend\n");
  EXPECT_EQ(settled(terminal), (Lines{"a 3%\n", "b 3%\n", "end\n"}));
}

TEST(Terminal, colours_stay_in_the_text) {
  EXPECT_EQ(all_settled("\x1b[1;31mred\x1b[0m plain\x1b[0m\n"), "\x1b[1;31mred\x1b[0m plain\x1b[0m\n");
  EXPECT_EQ(all_settled("\r\x1b[32m50\x1b[0m\r\x1b[32m60\x1b[0m\n"), "\x1b[32m60\x1b[0m\n");
}

TEST(Terminal, other_sequences_are_dropped_and_a_lost_end_swallows_one_line_at_most) {
  EXPECT_EQ(all_settled("a\x1b(Bb\x1b[5;7Hc\x1b]0;title\x07"
                        "d\x1b]8;;u\x1b\\e\x1b\x37"
                        "f\n"),
            "abcdef\n");
  EXPECT_EQ(all_settled("a\x1b]never ended\nb\n"), "a\nb\n");
}

TEST(Terminal, erasing_and_moving_within_a_line) {
  EXPECT_EQ(all_settled("abcdef\x1b[3D\x1b[K!\n"), "abc!\n");
  EXPECT_EQ(all_settled("abc\x1b[6GX\n"), "abc  X\n");
  EXPECT_EQ(all_settled("abc\x1b[2Kx\n"), "   x\n");
  EXPECT_EQ(all_settled("abc\x1b[1D\x1b[1Kx\n"), "  x\n");
}

TEST(Terminal, a_very_long_line_comes_in_pieces_and_exactly) {
  std::string line = "x";
  while (line.size() < 100'000) line += "\u20ac";
  Terminal terminal;
  terminal.write(line);
  const Lines pieces = settled(terminal);
  EXPECT_GE(pieces.size(), 5u);
  for (const auto& piece : pieces) {
    EXPECT_LE(piece.size(), Terminal::kMaxRowBytes);
    EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xC0, 0x80);  // no code point is cut
  }
  EXPECT_EQ(all_settled(line + "\nend"), line + "\nend");
}

TEST(Terminal, at_most_64_rows_are_live) {
  Terminal terminal;
  terminal.write("\x1b[?25l");
  for (int i = 0; i < 100; ++i) terminal.write("row " + std::to_string(i) + "\n");
  EXPECT_EQ(settled(terminal).size(), 100 - Terminal::kMaxRows + 1);
  EXPECT_EQ(terminal.live().size(), Terminal::kMaxRows - 1);
}

TEST(Terminal, an_unfinished_bar_settles_at_finish) {
  Terminal terminal;
  terminal.write("\router 1/2\n\rinner 3/9\x1b[A");
  terminal.finish();
  EXPECT_EQ(settled(terminal), (Lines{"outer 1/2\n", "inner 3/9"}));
  EXPECT_TRUE(terminal.live().empty());
}

}  // namespace
}  // namespace ddip::client
