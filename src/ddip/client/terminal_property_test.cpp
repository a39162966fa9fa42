#include <gtest/gtest.h>
// gtest first: rapidcheck/gtest.h does not include it.
#include <rapidcheck/gtest.h>

#include "ddip/client/terminal.h"

namespace ddip::client {
namespace {

// Bytes that a terminal cares about, far more often than chance would have them.
std::string hostile_bytes() {
  const auto pieces = *rc::gen::container<std::vector<std::string>>(rc::gen::oneOf(
      rc::gen::element<std::string>("\n", "\r", "\b", "\t", "\r\n", "\x1b[A", "\x1b[2A", "\x1b[1B", "\x1b[9C",
                                    "\x1b[2D", "\x1b[E", "\x1b[F", "\x1b[4G", "\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[J",
                                    "\x1b[2J", "\x1b[?25l", "\x1b[?25h", "\x1b[31m", "\x1b[m", "\x1b", "\x1b[", "\x1b]",
                                    "\x1b[99999999A", "bar", "    ", "\u2588", "\xe2", "\x88", "\xff"),
      rc::gen::element<std::string>("\n", "\r", "text", " ", "\x1b[A"),
      rc::gen::map(rc::gen::arbitrary<char>(), [](char c) { return std::string(1, c); })));
  std::string bytes;
  for (const auto& piece : pieces) bytes += piece;
  return bytes;
}

struct Outcome {
  std::vector<Terminal::Line> lines;
  std::vector<std::string> live;
  bool operator==(const Outcome&) const = default;
};

void take(Terminal& terminal, Outcome& outcome) {
  for (auto& line : terminal.take_settled()) outcome.lines.push_back(std::move(line));
}

RC_GTEST_PROP(TerminalProperty, any_bytes_in_any_chunks_give_what_the_whole_gives, ()) {
  const std::string bytes = hostile_bytes();
  Terminal whole;
  Outcome expected;
  whole.write(bytes);
  take(whole, expected);
  expected.live = whole.live();
  whole.finish();
  take(whole, expected);

  Terminal parts;
  Outcome seen;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = *rc::gen::inRange<size_t>(1, 9);
    parts.write(std::string_view(bytes).substr(at, size));
    if (size % 2 == 0) take(parts, seen);
    at += size;
  }
  take(parts, seen);
  seen.live = parts.live();
  parts.finish();
  take(parts, seen);
  RC_ASSERT(seen == expected);
}

RC_GTEST_PROP(TerminalProperty, live_state_is_bounded_and_every_settled_text_is_one_line, ()) {
  Terminal terminal;
  for (int i = *rc::gen::inRange(1, 40); i > 0; --i) terminal.write(hostile_bytes());
  RC_ASSERT(terminal.live().size() <= Terminal::kMaxRows);
  for (const auto& row : terminal.live()) RC_ASSERT(row.size() <= Terminal::kMaxRowBytes);
  terminal.finish();
  RC_ASSERT(terminal.live().empty());
  for (const auto& line : terminal.take_settled()) {
    const size_t newline = line.text.find('\n');
    RC_ASSERT(newline == std::string::npos || newline + 1 == line.text.size());
  }
}

RC_GTEST_PROP(TerminalProperty, without_returns_and_escapes_the_bytes_come_out_as_they_went_in, (std::string bytes)) {
  std::erase_if(bytes, [](char c) { return c == '\r' || c == '\b' || c == '\x1b'; });
  if (*rc::gen::arbitrary<bool>()) bytes.insert(bytes.size() / 2, 20'000, 'x');
  Terminal terminal;
  terminal.write(bytes);
  terminal.finish();
  std::string text;
  for (const auto& line : terminal.take_settled()) text += line.text;
  RC_ASSERT(text == bytes);
}

}  // namespace
}  // namespace ddip::client
