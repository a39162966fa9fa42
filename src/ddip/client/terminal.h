// A small terminal for one (cell, rank, stream): bytes in, lines of text out.
//
// What a rank wrote is split in two:
//   settled  lines that nothing can change any more, each given out once and in order;
//   live     the present state of the lines that are still being written or redrawn (a progress bar, a line
//            without its '\n'): newest only, older frames are forgotten.
//
// Understood: \n \r \b; cursor moves ESC[ A B C D E F G; erasing ESC[ K J; ESC[?25l and ESC[?25h; colours ESC[...m,
// which stay in the text. Every other escape sequence is dropped, every other byte (tabs, invalid UTF-8) is text.
// Without \r, \b and ESC the settled text is exactly the bytes written. CR-LF is a newline.
//
// When a line settles. An ordinary line settles at its '\n'. A line drawn after '\r' may be redrawn from below by
// ESC[A (nested tqdm) even after its '\n', so it settles only when
//   - ordinary text begins below it, or the line below it is redrawn without going up (bars in sequence);
//   - a bar below it was drawn and the cursor came back to the line between (nested tqdm, inner bar with leave=True);
//   - all below was erased and drawn anew (rich, printing above its bars);
//   - more than kMaxRows rows are live, or finish().
// While the cursor is hidden (ESC[?25l: rich draws several lines) ordinary lines wait in the same way.
//
// Limits: every code point is one column. A row longer than kMaxRowBytes settles piece by piece, the pieces before
// the last without '\n'. Bars that are drawn bottom row first with a visible cursor, or that were printed as ordinary
// lines before the first ESC[A, are not recognised: their first frame settles as text.
//
// Memory: kMaxRows * kMaxRowBytes plus what nobody took yet. Not thread-safe. Never fails, whatever the bytes; how
// they were cut into writes makes no difference.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace ddip::client {

class Terminal {
 public:
  static constexpr size_t kMaxRows = 64;
  static constexpr size_t kMaxColumns = 4096;
  static constexpr size_t kMaxRowBytes = 4 * kMaxColumns;

  struct Line {
    std::string text;  // with its '\n', if it had one
    bool bar = false;  // the last frame of a line that was redrawn after '\r'
    bool operator==(const Line&) const = default;
  };

  void write(std::string_view bytes);
  // Nothing more comes: all that is live settles. The terminal is then as new.
  void finish();
  // Ordinary text follows elsewhere, on the rank's other stream: what is above the cursor settles, if text here would
  // make it so.
  void settle_above();

  std::vector<Line> take_settled();
  // Top to bottom, without '\n', without blank rows at the end.
  std::vector<std::string> live() const;
  // Was there ever a line redrawn after '\r', over what was there or in its erased place?
  bool drew_bar() const { return drew_bar_; }

 private:
  struct Row {
    std::string text;
    bool returned = false;  // drawn after '\r' or reached by a cursor move: may be one of several bars
    bool redrawn = false;   // visible text was overwritten
    bool erased = false;    // visible text was, by the terminal's own command (rich erases every frame)
  };
  enum class Parse { text, escape, csi, string, string_escape };
  enum class Arrival { newline, up, down };
  // What happened on the cursor's row since the cursor came to it.
  struct Visit {
    Arrival by = Arrival::newline;
    bool returned = false;  // '\r' seen
    bool drawn = false;     // text drawn
    bool again = false;     // '\r' seen after text
  };

  void accept(char byte);
  void accept_text(char byte);
  void draw(std::string_view glyph);
  void draw_partial_glyph();
  void newline();
  void control_sequence(char final);
  void colour();
  void erase_row(int mode);
  void erase_rows(int mode);
  void move_rows(int by);
  void move_to_column(size_t column);
  size_t column() const;

  bool above_is_done() const;
  bool blank_from(size_t row) const;
  void settle_top(size_t rows);
  void settle(Row& row, bool ended);
  void spill();

  // The screen. The cursor is a byte offset in rows_[row_] and columns_beyond_ columns right of the row's end.
  std::deque<Row> rows_ = std::deque<Row>(1);
  size_t row_ = 0;
  size_t offset_ = 0;
  size_t columns_beyond_ = 0;
  std::string colour_;  // colours set in the middle of a row, for the next glyph

  // How the cursor got here, for above_is_done().
  Visit visit_;
  long departed_from_ = 0;  // the row where the last run of newlines began; negative once it settled
  bool drew_below_ = false;
  bool cursor_hidden_ = false;
  bool drew_bar_ = false;

  // The parser, between bytes.
  Parse parse_ = Parse::text;
  std::string partial_glyph_;
  std::string parameters_;

  std::vector<Line> settled_;
};

}  // namespace ddip::client
