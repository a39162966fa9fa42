#include "ddip/client/difference.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ddip/base/error.h"
#include "ddip/client/terminal.h"

namespace ddip::client {
namespace {

using namespace std::chrono_literals;
using Blocks = std::vector<Block>;
using Form = Difference::Form;

Difference::Time at(std::chrono::milliseconds ms) { return Difference::Time{} + ms; }
Block out(std::vector<int> ranks, std::string text) { return {std::move(ranks), Stream::out, std::move(text), 0}; }

const Blocks kDifferThenDone{out({0}, "rank 0\n"), out({1}, "rank 1\n"), out({2}, "rank 2\n"),
                             out({0, 1, 2}, "done\n")};

size_t count_lines(const Block& block) {
  return static_cast<size_t>(std::count(block.text.begin(), block.text.end(), '\n'));
}

Difference::Options appending() { return {.form = Form::append}; }

std::string text_at(Difference& difference, std::chrono::milliseconds ms) {
  std::string text;
  for (const Text& piece : difference.take_text(at(ms))) text += piece.text;
  return text;
}

TEST(Difference, what_all_ranks_said_is_one_block) {
  Difference d({0, 1, 2});
  for (int rank : {2, 0, 1}) d.write(rank, Stream::out, "one\ntwo\n", at(0ms));
  EXPECT_EQ(d.blocks(), (Blocks{out({0, 1, 2}, "one\ntwo\n")}));
  EXPECT_EQ(d.deadline(), std::nullopt);
}

TEST(Difference, a_line_waits_for_laggards_no_longer_than_patience) {
  Difference d({0, 1});
  d.write(0, Stream::out, "early\n", at(10ms));
  EXPECT_EQ(d.deadline(), at(310ms));
  d.advance(at(309ms));
  EXPECT_TRUE(d.blocks().empty());
  d.advance(at(310ms));
  EXPECT_EQ(d.blocks(), (Blocks{out({0}, "early\n")}));
  EXPECT_EQ(d.deadline(), std::nullopt);
}

TEST(Difference, a_line_shown_by_one_rank_becomes_common_when_the_rest_say_it) {
  Difference d({0, 1});
  d.write(0, Stream::out, "late\n", at(0ms));
  d.advance(at(400ms));
  ASSERT_EQ(d.blocks(), (Blocks{out({0}, "late\n")}));
  d.first_changed();
  d.write(1, Stream::out, "late\n", at(900ms));
  EXPECT_EQ(d.blocks(), (Blocks{out({0, 1}, "late\n")}));
  EXPECT_EQ(d.first_changed(), 0u);
  EXPECT_EQ(d.first_changed(), 1u);
}

TEST(Difference, appended_text_prints_a_late_rank_s_line_for_that_rank_only) {
  Difference d({0, 1, 2}, appending());
  d.write(0, Stream::out, "late\n", at(0ms));
  EXPECT_EQ(text_at(d, 299ms), "");
  EXPECT_EQ(text_at(d, 300ms), "[0] late\n");
  d.write(1, Stream::out, "late\n", at(400ms));
  d.write(2, Stream::out, "late\n", at(500ms));
  EXPECT_EQ(text_at(d, 500ms), "[1-2] late\n");
  for (int rank : {0, 1, 2}) d.write(rank, Stream::out, "all\n", at(600ms));
  EXPECT_EQ(text_at(d, 600ms), "all\n");
}

TEST(Difference, ranks_that_differ_come_together_at_the_next_common_line) {
  Difference d({0, 1, 2});
  d.write(2, Stream::out, "rank 2\ndone\n", at(0ms));
  d.write(0, Stream::out, "rank 0\ndone\n", at(0ms));
  d.write(1, Stream::out, "rank 1\ndone\n", at(0ms));
  EXPECT_EQ(d.blocks(), kDifferThenDone);
}

TEST(Difference, six_of_eight_tracebacks_are_one_block_and_the_odd_ones_come_first) {
  Difference d({0, 1, 2, 3, 4, 5, 6, 7});
  for (int rank = 0; rank < 8; ++rank) {
    const std::string error = rank == 3 ? "OutOfMemory\n" : rank == 6 ? "nan\n  at step 5\n" : "PeerLost\n  rank 3\n";
    d.write(rank, Stream::err, error, at(0ms));
    d.close(rank, at(0ms));
  }
  ASSERT_EQ(d.blocks().size(), 3u);
  EXPECT_EQ(d.blocks()[0].ranks, (std::vector<int>{3}));
  EXPECT_EQ(d.blocks()[1].ranks, (std::vector<int>{6}));
  EXPECT_EQ(d.blocks()[2], (Block{{0, 1, 2, 4, 5, 7}, Stream::err, "PeerLost\n  rank 3\n", 0}));
}

TEST(Difference, ranks_in_agreement_are_aligned_while_another_is_silent) {
  Difference d({0, 1, 2});
  for (int rank : {0, 2}) d.write(rank, Stream::out, "a\nrank " + std::to_string(rank) + "\nb\n", at(0ms));
  d.advance(at(300ms));
  EXPECT_EQ(d.blocks(), (Blocks{out({0, 2}, "a\n"), out({0}, "rank 0\n"), out({2}, "rank 2\n"), out({0, 2}, "b\n")}));
}

TEST(Difference, a_rank_that_closed_is_not_waited_for) {
  Difference d({0, 1, 2}, appending());
  d.write(2, Stream::err, "failed\n", at(0ms));
  d.close(2, at(0ms));
  EXPECT_EQ(text_at(d, 300ms), "[2] failed\n");
  for (int rank : {0, 1}) d.write(rank, Stream::err, "step\n", at(400ms));
  EXPECT_EQ(text_at(d, 400ms), "[0-1] step\n");
}

TEST(Difference, the_lines_of_a_rank_that_closed_early_still_become_common) {
  Difference d({0, 1, 2});
  d.write(2, Stream::err, "failed\n", at(0ms));
  d.close(2, at(0ms));
  for (int rank : {0, 1}) d.write(rank, Stream::err, "step\n", at(400ms));
  for (int rank : {0, 1}) d.write(rank, Stream::err, "failed\n", at(2000ms));
  EXPECT_EQ(d.blocks(), (Blocks{{{0, 1}, Stream::err, "step\n", 0}, {{0, 1, 2}, Stream::err, "failed\n", 0}}));
}

TEST(Difference, the_order_in_which_ranks_close_within_patience_makes_no_difference) {
  for (int last : {0, 1, 2}) {
    Difference d({0, 1, 2});
    const auto speak = [&](int rank) {
      d.write(rank, Stream::out, "rank " + std::to_string(rank) + "\ndone\n", at(0ms));
      d.close(rank, at(0ms));
    };
    for (int rank : {0, 1, 2}) {
      if (rank != last) speak(rank);
    }
    speak(last);
    EXPECT_EQ(d.blocks(), kDifferThenDone);
  }
}

TEST(Difference, an_unfinished_line_is_live_until_its_newline_or_close) {
  Difference d({0, 1}, appending());
  d.write(0, Stream::out, "a", at(0ms));
  EXPECT_EQ(text_at(d, 1000ms), "");
  EXPECT_EQ(d.bars(), (std::map<int, std::vector<std::string>>{{0, {"a"}}}));
  d.write(1, Stream::out, "ab", at(1000ms));
  d.write(0, Stream::out, "b", at(1000ms));
  d.close(0, at(1000ms));
  d.close(1, at(1000ms));
  EXPECT_EQ(text_at(d, 1000ms), "ab");
  EXPECT_TRUE(d.bars().empty());
}

TEST(Difference, appended_text_ends_an_unended_line_before_another_rank_s) {
  Difference d({0, 1}, appending());
  d.write(0, Stream::out, "a", at(0ms));
  d.write(1, Stream::out, "b", at(0ms));
  d.close(0, at(0ms));
  d.close(1, at(0ms));
  EXPECT_EQ(text_at(d, 0ms), "[0] a\n[1] b");
}

TEST(Difference, bars_are_state_and_only_the_lowest_rank_leaves_its_last_frame) {
  Difference d({0, 1});
  for (int rank : {0, 1}) d.write(rank, Stream::err, "\r 0%\r50% by " + std::to_string(rank), at(0ms));
  d.advance(at(1000ms));
  EXPECT_TRUE(d.blocks().empty());
  EXPECT_EQ(d.bars(), (std::map<int, std::vector<std::string>>{{0, {"50% by 0"}}}));
  for (int rank : {0, 1}) d.write(rank, Stream::err, "\r99% by " + std::to_string(rank) + "\nend\n", at(1000ms));
  EXPECT_EQ(d.blocks(), (Blocks{{{0}, Stream::err, "99% by 0\n", 0}, {{0, 1}, Stream::err, "end\n", 0}}));
}

TEST(Difference, bars_of_higher_ranks_are_left_out_also_where_they_end_first) {
  Difference d({0, 1});
  d.write(1, Stream::err, "\r 0%\r99% by 1\n", at(0ms));
  d.close(1, at(0ms));
  d.write(0, Stream::err, "\r 0%\r99% by 0\n", at(100ms));
  d.close(0, at(100ms));
  EXPECT_EQ(d.blocks(), (Blocks{{{0}, Stream::err, "99% by 0\n", 0}}));
}

TEST(Difference, a_slower_rank_does_not_take_the_place_of_a_bar_that_is_done) {
  Difference d({0, 1});
  for (int rank : {0, 1}) d.write(rank, Stream::err, "\r 0%\r50%", at(0ms));
  d.write(0, Stream::err, "\r99%\n", at(0ms));
  d.close(0, at(0ms));
  EXPECT_TRUE(d.bars().empty());
  d.write(1, Stream::out, "your name? ", at(0ms));  // a line without its end is not a bar
  EXPECT_EQ(d.bars(), (std::map<int, std::vector<std::string>>{{1, {"your name? "}}}));
}

// rich erases its lines before it draws them anew: nothing is ever overwritten.
TEST(Difference, a_slower_rank_does_not_take_the_place_of_erased_and_redrawn_bars_that_are_done) {
  Difference d({0, 1});
  for (int rank : {0, 1}) {
    d.write(rank, Stream::out, "\x1b[?25l\r\x1b[2Kepoch 0%\nbatch 0%", at(0ms));
    d.write(rank, Stream::out, "\r\x1b[2K\x1b[1A\x1b[2Kepoch 67%\nbatch 98%", at(0ms));
  }
  d.write(0, Stream::out, "\r\x1b[2K\x1b[1A\x1b[2Kepoch 100%\nbatch 100%\n\x1b[?25h", at(0ms));
  d.close(0, at(0ms));
  EXPECT_TRUE(d.bars().empty());
  d.write(1, Stream::out, "\r\x1b[2K\x1b[1A\x1b[2Kepoch 100%\nbatch 100%\n\x1b[?25h", at(0ms));
  d.close(1, at(0ms));
  EXPECT_EQ(d.blocks(), (Blocks{{{0, 1}, Stream::out, "epoch 100%\nbatch 100%\n", 0}}));
}

TEST(Difference, equal_text_on_another_stream_is_another_line) {
  Difference d({0, 1}, appending());
  d.write(0, Stream::out, "same\n", at(0ms));
  d.write(1, Stream::err, "same\n", at(0ms));
  EXPECT_EQ(d.take_text(at(300ms)), (std::vector<Text>{{Stream::out, "[0] same\n"}, {Stream::err, "[1] same\n"}}));
}

void speak_on_both_streams(Difference& d) {
  for (int rank : {0, 1}) {
    d.write(rank, Stream::out, "first\n", at(0ms));
    d.write(rank, Stream::err, rank == 0 ? "second\n" : "2nd\n", at(0ms));
    d.write(rank, Stream::out, rank == 0 ? "third\n" : "3rd\n", at(0ms));
  }
  d.advance(at(300ms));
}

TEST(Difference, the_order_between_streams_is_kept_per_rank) {
  Difference d({0, 1});
  speak_on_both_streams(d);
  EXPECT_EQ(d.blocks(), (Blocks{out({0, 1}, "first\n"),
                                {{0}, Stream::err, "second\n", 0},
                                out({0}, "third\n"),
                                {{1}, Stream::err, "2nd\n", 0},
                                out({1}, "3rd\n")}));
}

TEST(Difference, the_order_between_streams_is_kept_per_rank_in_appended_text) {
  Difference d({0, 1}, appending());
  speak_on_both_streams(d);
  EXPECT_EQ(d.take_text(at(300ms)), (std::vector<Text>{{Stream::out, "first\n"},
                                                       {Stream::err, "[0] second\n"},
                                                       {Stream::out, "[0] third\n"},
                                                       {Stream::err, "[1] 2nd\n"},
                                                       {Stream::out, "[1] 3rd\n"}}));
}

TEST(Difference, a_finished_bar_stands_above_what_was_printed_after_it) {
  Difference d({0, 1});
  for (int rank : {0, 1}) {
    d.write(rank, Stream::err, "\r 0%", at(0ms));
    d.write(rank, Stream::out, "during\n", at(0ms));
    d.write(rank, Stream::err, "\r99% by " + std::to_string(rank) + "\n", at(0ms));
    d.write(rank, Stream::out, "after\n", at(0ms));
  }
  EXPECT_EQ(d.blocks(), (Blocks{out({0, 1}, "during\n"), {{0}, Stream::err, "99% by 0\n", 0}, out({0, 1}, "after\n")}));
  EXPECT_TRUE(d.bars().empty());
}

TEST(Difference, a_finished_bar_stands_above_an_unended_line_printed_after_it) {
  Difference d({0});
  d.write(0, Stream::err, "\r 0%\r99%\n", at(0ms));
  d.write(0, Stream::out, "after", at(0ms));
  d.close(0, at(0ms));
  EXPECT_EQ(d.blocks(), (Blocks{{{0}, Stream::err, "99%\n", 0}, out({0}, "after")}));
}

TEST(Difference, a_bar_that_is_drawn_again_stays_live_below_what_is_printed_meanwhile) {
  Difference d({0});
  d.write(0, Stream::err, "\r10%\n\rinner 50%\x1b[A", at(0ms));  // nested tqdm: the cursor is on the outer bar
  d.write(0, Stream::out, "meanwhile\n", at(0ms));
  EXPECT_EQ(d.blocks(), (Blocks{out({0}, "meanwhile\n")}));
  EXPECT_EQ(d.bars(), (std::map<int, std::vector<std::string>>{{0, {"10%", "inner 50%"}}}));
}

TEST(Difference, only_chosen_ranks_are_shown_and_alone_without_prefix) {
  Difference d({5}, appending());
  d.write(0, Stream::out, "hidden\n", at(0ms));
  d.write(5, Stream::out, "shown\n", at(0ms));
  EXPECT_EQ(text_at(d, 0ms), "shown\n");
  EXPECT_THROW(Difference({}), ConfigError);
}

TEST(Difference, what_a_rank_says_after_close_is_shown) {
  Difference d({0, 1}, appending());
  for (int rank : {0, 1}) d.close(rank, at(0ms));
  d.write(1, Stream::out, "late\n", at(0ms));
  EXPECT_EQ(text_at(d, 300ms), "[1] late\n");
}

TEST(Difference, a_flood_keeps_the_beginning_the_end_and_one_marker) {
  Difference d({0, 1}, {.max_lines = 100});
  for (int i = 0; i < 1000; ++i) {
    for (int rank : {0, 1}) d.write(rank, Stream::out, std::to_string(i) + "\n", at(0ms));
  }
  const Blocks& blocks = d.blocks();
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(count_lines(blocks[0]), 50u);
  EXPECT_TRUE(blocks[0].text.starts_with("0\n1\n"));
  EXPECT_TRUE(blocks[2].text.ends_with("\n998\n999\n"));
  EXPECT_LE(count_lines(blocks[2]), 50u);
  EXPECT_EQ(blocks[1].elided, 1000 - count_lines(blocks[0]) - count_lines(blocks[2]));
  EXPECT_EQ(blocks[1].text, "… " + std::to_string(blocks[1].elided) + " lines elided (%diplog)\n");
}

TEST(Difference, the_marker_counts_lines_that_ranks_said_not_lines_of_the_display) {
  Difference d({0, 1}, {.max_lines = 100, .window = 10});
  for (int rank : {0, 1}) {
    for (int i = 0; i < 1000; ++i) d.write(rank, Stream::out, std::to_string(i) + "\n", at(0ms));
    d.advance(at(1s * (rank + 1)));  // too late for the other to say the same
  }
  for (int rank : {0, 1}) d.close(rank, at(3s));
  size_t shown[2] = {0, 0};
  std::string marker;
  for (const Block& block : d.blocks()) {
    if (block.elided > 0) marker = block.text;
    for (int rank : block.ranks) shown[rank] += block.elided > 0 ? 0 : count_lines(block);
  }
  const size_t least = 1000 - std::max(shown[0], shown[1]), most = 1000 - std::min(shown[0], shown[1]);
  EXPECT_EQ(marker,
            "… " + std::to_string(least) + " to " + std::to_string(most) + " lines of each rank elided (%diplog)\n");
}

TEST(Difference, a_flood_between_two_takes_is_cut_with_one_marker) {
  Difference d({0}, {.form = Form::append, .max_lines = 2});
  d.write(0, Stream::out, "a\nb\nc\nd\n", at(0ms));
  EXPECT_EQ(text_at(d, 0ms), "a\nb\n… 2 lines elided (%diplog)\n");
  d.write(0, Stream::out, "e\n", at(0ms));
  EXPECT_EQ(text_at(d, 0ms), "e\n");
}

TEST(Difference, only_the_last_window_of_a_lone_rank_can_still_become_common) {
  Difference d({0, 1}, {.window = 10});
  for (int i = 0; i < 100; ++i) d.write(0, Stream::out, std::to_string(i) + "\n", at(0ms));
  d.advance(at(300ms));
  d.write(1, Stream::out, "0\n", at(300ms));
  d.write(1, Stream::out, "99\n", at(300ms));
  const Blocks& blocks = d.blocks();
  EXPECT_EQ(blocks.back(), out({0, 1}, "99\n"));
  EXPECT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[1], out({1}, "0\n"));
}

TEST(Difference, a_flood_that_memory_cannot_hold_does_not_wait_for_patience) {
  Difference d({0, 1}, {.max_lines = 100});
  const std::string filling(Terminal::kMaxRowBytes - 100, 'x');
  for (size_t bytes = 0; bytes < Difference::kMaxWaiting; bytes += filling.size()) {
    ASSERT_TRUE(d.blocks().empty() || bytes > Difference::kMaxWaiting / 2);
    d.write(0, Stream::out, std::to_string(bytes) + filling + "\n", at(0ms));
  }
  d.write(0, Stream::out, "last\n", at(0ms));
  EXPECT_EQ(d.blocks().size(), 3u);
  d.write(1, Stream::out, "last\n", at(0ms));
  EXPECT_EQ(d.blocks().back(), out({0, 1}, "last\n"));
}

TEST(Difference, first_changed_spares_the_blocks_before) {
  Difference d({0, 1});
  const auto differ = [&](int i) {
    const std::string step = "\nstep " + std::to_string(i) + "\n";
    for (int rank : {0, 1}) d.write(rank, Stream::out, std::to_string(rank) + step, at(0ms));
  };
  differ(1);
  EXPECT_EQ(d.first_changed(), 0u);
  EXPECT_EQ(d.blocks().size(), 3u);
  differ(2);
  EXPECT_EQ(d.first_changed(), 3u);
  EXPECT_EQ(d.blocks().size(), 6u);
}

TEST(Difference, a_hundred_thousand_lines_a_rank_whoever_is_first) {
  Difference d({0, 1, 2, 3}, {.max_lines = 0});
  std::string flood;
  for (int i = 0; i < 100'000; ++i) flood += "step " + std::to_string(i) + " of a rather ordinary line of output\n";
  for (int rank : {0, 1, 2, 3}) d.write(rank, Stream::out, flood, at(0ms));
  ASSERT_EQ(d.blocks().size(), 1u);
  EXPECT_EQ(d.blocks()[0].text, flood);
}

TEST(Difference, a_hundred_thousand_lines_a_rank_that_all_differ) {
  Difference d({0, 1, 2, 3}, {.max_lines = 0});
  for (int i = 0; i < 100'000; ++i) {
    for (int rank : {0, 1, 2, 3}) {
      d.write(rank, Stream::out, std::to_string(rank) + " at " + std::to_string(i) + "\n", at(i * 1ms));
    }
  }
  for (int rank : {0, 1, 2, 3}) d.close(rank, at(100'000ms));
  size_t lines = 0;
  for (const Block& block : d.blocks()) lines += count_lines(block);
  EXPECT_EQ(lines, 400'000u);
}

TEST(Difference, rank_lists_are_compact) {
  EXPECT_EQ(rank_list({0}), "0");
  EXPECT_EQ(rank_list({1, 2, 3, 5}), "1-3,5");
  EXPECT_EQ(rank_list({0, 2, 7, 8}), "0,2,7-8");
}

}  // namespace
}  // namespace ddip::client
