#include "ddip/client/terminal.h"

#include <algorithm>
#include <utility>

namespace ddip::client {
namespace {

constexpr char kEscape = '\x1b';
constexpr size_t kMaxParameters = 32;
constexpr size_t kMaxColour = 256;

bool continues_glyph(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Bytes of the UTF-8 sequence that begins so; 1 for ASCII and for bytes that begin none.
size_t glyph_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte >= 0xC2 && byte <= 0xDF) return 2;
  if (byte >= 0xE0 && byte <= 0xEF) return 3;
  if (byte >= 0xF0 && byte <= 0xF4) return 4;
  return 1;
}

size_t glyph_begin(std::string_view text, size_t at) {
  while (at < text.size() && text[at] == kEscape) at = std::min(text.find('m', at), text.size() - 1) + 1;
  return at;
}

// One column: the colours before a glyph and the glyph. Colours at the end of a row are a column without glyph.
size_t column_end(std::string_view text, size_t at) {
  at = glyph_begin(text, at);
  if (at >= text.size()) return text.size();
  const size_t length = glyph_length(text[at]);
  if (at + length > text.size()) return at + 1;
  for (size_t i = 1; i < length; ++i) {
    if (!continues_glyph(text[at + i])) return at + 1;
  }
  return at + length;
}

bool blank(std::string_view text) {
  for (size_t at = glyph_begin(text, 0); at < text.size(); at = glyph_begin(text, at + 1)) {
    if (text[at] != ' ') return false;
  }
  return true;
}

std::string_view without_padding(std::string_view text) {
  const size_t last = text.find_last_not_of(' ');
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

bool plain_ascii(char byte) { return byte >= 0x20 && byte < 0x7F; }

// The first number of "5;1"; 'otherwise' if there is none. Large ones are cut: no screen is that large.
int first_number(std::string_view parameters, int otherwise) {
  int number = 0;
  size_t i = 0;
  for (; i < parameters.size() && parameters[i] >= '0' && parameters[i] <= '9'; ++i) {
    number = std::min(number * 10 + (parameters[i] - '0'), static_cast<int>(Terminal::kMaxColumns));
  }
  return i == 0 ? otherwise : number;
}

}  // namespace

void Terminal::write(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const bool ascii = plain_ascii(bytes[i]) && parse_ == Parse::text;
    accept(bytes[i++]);
    // The common case in bulk: the rest of an ASCII run, at the end of a row where a first glyph was just drawn.
    Row& row = rows_[row_];
    if (!ascii || offset_ != row.text.size() || row.text.empty()) continue;
    const size_t limit = std::min(bytes.size() - i, kMaxRowBytes - row.text.size());
    size_t run = 0;
    while (run < limit && plain_ascii(bytes[i + run])) ++run;
    row.text.append(bytes, i, run);
    offset_ += run;
    i += run;
  }
}

void Terminal::finish() {
  draw_partial_glyph();
  size_t last = rows_.size();
  while (last > row_) {
    const Row& row = rows_[last - 1];
    const bool ordinary = last - 1 == row_ && !row.returned;
    if (ordinary ? !row.text.empty() : !blank(row.text)) break;
    --last;
  }
  for (size_t i = 0; i < last; ++i) settle(rows_[i], i < row_ || i + 1 < last);
  auto settled = std::move(settled_);
  const bool drew_bar = drew_bar_;
  *this = Terminal();
  settled_ = std::move(settled);
  drew_bar_ = drew_bar;
}

void Terminal::settle_above() {
  if (row_ == 0 || parse_ != Parse::text || visit_.by != Arrival::newline || !above_is_done()) return;
  rows_.resize(row_ + 1);
  settle_top(row_);
}

std::vector<Terminal::Line> Terminal::take_settled() { return std::exchange(settled_, {}); }

std::vector<std::string> Terminal::live() const {
  std::vector<std::string> lines;
  for (const Row& row : rows_) lines.emplace_back(row.returned ? without_padding(row.text) : row.text);
  while (!lines.empty() && blank(lines.back())) lines.pop_back();
  return lines;
}

void Terminal::accept(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  switch (parse_) {
    case Parse::text: return accept_text(byte);
    case Parse::escape:
      if (byte == '[') {
        parameters_.clear();
        parse_ = Parse::csi;
      } else if (byte == ']' || byte == 'P' || byte == '_' || byte == '^') {
        parse_ = Parse::string;
      } else if (code >= 0x30 && code < 0x7F) {
        parse_ = Parse::text;
      } else if (code < 0x20 || code >= 0x7F) {
        parse_ = Parse::text;
        accept_text(byte);
      }
      return;
    case Parse::csi:
      if (code >= 0x20 && code < 0x40) {
        if (parameters_.size() <= kMaxParameters) parameters_ += byte;
        return;
      }
      parse_ = Parse::text;
      if (code < 0x40 || code >= 0x7F) return accept_text(byte);
      if (parameters_.size() <= kMaxParameters) control_sequence(byte);
      return;
    case Parse::string:  // a window title or a link; a newline ends it, or a lost end would swallow the output
      if (byte == kEscape) parse_ = Parse::string_escape;
      if (byte == '\a') parse_ = Parse::text;
      if (byte == '\n' || byte == '\r') {
        parse_ = Parse::text;
        accept_text(byte);
      }
      return;
    case Parse::string_escape:
      parse_ = Parse::text;
      if (byte == '\\') return;
      parse_ = Parse::escape;
      return accept(byte);
  }
}

void Terminal::accept_text(char byte) {
  if (!partial_glyph_.empty()) {
    if (continues_glyph(byte)) {
      partial_glyph_ += byte;
      if (partial_glyph_.size() == glyph_length(partial_glyph_[0])) draw(std::exchange(partial_glyph_, {}));
      return;
    }
    draw_partial_glyph();
  }
  switch (byte) {
    case '\n': return newline();
    case '\r':
      visit_.returned = true;
      visit_.again = visit_.drawn;
      return move_to_column(0);
    case '\b': return move_to_column(std::max<size_t>(column(), 1) - 1);
    case kEscape: parse_ = Parse::escape; return;
    default:
      if (glyph_length(byte) > 1) {
        partial_glyph_ = byte;
      } else {
        draw({&byte, 1});
      }
  }
}

void Terminal::draw_partial_glyph() {
  for (const char byte : std::exchange(partial_glyph_, {})) draw({&byte, 1});
}

void Terminal::draw(std::string_view glyph) {
  if (row_ > 0 && above_is_done()) {
    if (blank_from(row_)) rows_.resize(row_ + 1);
    settle_top(row_);
  }
  if (static_cast<long>(row_) > departed_from_) drew_below_ = true;
  visit_.drawn = true;
  Row* row = &rows_[row_];
  const bool returned = visit_.returned || visit_.by != Arrival::newline;
  if (offset_ == 0 && blank(row->text)) {  // a bar that was wiped out: what comes is new
    if (returned && row->erased) drew_bar_ = true;
    *row = Row{};
  }
  if (returned) row->returned = true;

  if (row->text.size() + columns_beyond_ + colour_.size() + glyph.size() > kMaxRowBytes) {
    spill();
    row = &rows_[row_];
  }
  row->text.append(columns_beyond_, ' ');
  offset_ += std::exchange(columns_beyond_, 0);
  const size_t begin = glyph_begin(row->text, offset_);
  if (begin < row->text.size() && row->text[begin] != ' ') row->redrawn = true;
  if (row->redrawn && row->returned) drew_bar_ = true;
  colour_ += glyph;
  row->text.replace(offset_, column_end(row->text, offset_) - offset_, colour_);
  offset_ += colour_.size();
  colour_.clear();
}

void Terminal::newline() {
  Row& row = rows_[row_];
  columns_beyond_ = 0;
  offset_ = 0;
  if (rows_.size() == 1 && !row.returned && !cursor_hidden_) {
    settle(row, true);
    row = Row{};
    visit_ = {};
    return;
  }
  if (visit_.drawn || visit_.by != Arrival::newline) {
    departed_from_ = static_cast<long>(row_);
    drew_below_ = false;
  }
  visit_ = {};
  if (++row_ == rows_.size()) rows_.emplace_back();
  if (rows_.size() > kMaxRows) settle_top(1);
}

void Terminal::control_sequence(char final) {
  if (parameters_ == "?25") {
    if (final == 'l' || final == 'h') cursor_hidden_ = final == 'l';
    return;
  }
  if (final == 'm') return colour();
  const int count = std::max(first_number(parameters_, 1), 1);
  switch (final) {
    case 'A': return move_rows(-count);
    case 'B': return move_rows(count);
    case 'C': return move_to_column(column() + static_cast<size_t>(count));
    case 'D': return move_to_column(column() - std::min(column(), static_cast<size_t>(count)));
    case 'E':
    case 'F':
      move_rows(final == 'E' ? count : -count);
      visit_.returned = true;
      return move_to_column(0);
    case 'G': return move_to_column(static_cast<size_t>(count) - 1);
    case 'K': return erase_row(first_number(parameters_, 0));
    case 'J': return erase_rows(first_number(parameters_, 0));
    default: return;
  }
}

// At the end of a row a colour is text; before other glyphs it belongs to the next glyph drawn.
void Terminal::colour() {
  if (parameters_.find_first_not_of("0123456789;:") != std::string::npos) return;
  const std::string sequence = "\x1b[" + parameters_ + "m";
  std::string& text = rows_[row_].text;
  if (glyph_begin(text, offset_) < text.size() || columns_beyond_ > 0) {
    if (colour_.size() + sequence.size() > kMaxColour) colour_.clear();
    colour_ += sequence;
    return;
  }
  text.resize(offset_);
  const std::string all = std::exchange(colour_, {}) + sequence;
  if (text.size() + all.size() > kMaxRowBytes) spill();
  rows_[row_].text += all;
  offset_ = rows_[row_].text.size();
}

void Terminal::erase_row(int mode) {
  Row& row = rows_[row_];
  const size_t at = column();
  const bool visible = !blank(row.text);
  if (mode == 0) {
    row.text.resize(offset_);
  } else if (mode == 2) {
    row.text.clear();
  } else if (mode == 1) {
    row.text.replace(0, column_end(row.text, offset_), std::string(at + 1, ' '));
  }
  row.erased |= visible && blank(row.text);
  if (mode != 0) move_to_column(at);
}

void Terminal::erase_rows(int mode) {
  if (mode != 0 && mode != 2) return;
  erase_row(mode);
  for (size_t i = mode == 0 ? row_ + 1 : 0; i < rows_.size(); ++i) {
    if (i == row_) continue;
    rows_[i].erased |= !blank(rows_[i].text);
    rows_[i].text.clear();
  }
}

void Terminal::move_rows(int by) {
  const long last = static_cast<long>(rows_.size()) - 1;
  const size_t target = static_cast<size_t>(std::clamp(static_cast<long>(row_) + by, 0L, last));
  if (target == row_) return;
  const size_t at = column();
  row_ = target;
  visit_ = {};
  visit_.by = by < 0 ? Arrival::up : Arrival::down;
  move_to_column(at);
}

void Terminal::move_to_column(size_t target) {
  const std::string& text = rows_[row_].text;
  offset_ = 0;
  for (; target > 0 && glyph_begin(text, offset_) < text.size(); --target) offset_ = column_end(text, offset_);
  if (target > 0) offset_ = text.size();
  columns_beyond_ = std::min(target, kMaxColumns);
}

size_t Terminal::column() const {
  const std::string& text = rows_[row_].text;
  size_t columns = 0;
  for (size_t at = 0; at < offset_ && glyph_begin(text, at) < offset_; ++columns) at = column_end(text, at);
  return columns + columns_beyond_;
}

// About to draw on row_: can the rows above still change? The cases are those of the header.
bool Terminal::above_is_done() const {
  switch (visit_.by) {
    case Arrival::down: return false;
    case Arrival::up: return blank_from(row_) || (static_cast<long>(row_) == departed_from_ && drew_below_);
    case Arrival::newline: break;
  }
  if (visit_.again) return row_ + 1 == rows_.size();
  return !visit_.returned && !visit_.drawn && !cursor_hidden_ && blank_from(row_);
}

bool Terminal::blank_from(size_t row) const {
  return std::all_of(rows_.begin() + static_cast<long>(row), rows_.end(), [](const Row& r) { return blank(r.text); });
}

void Terminal::settle_top(size_t rows) {
  for (size_t i = 0; i < rows; ++i) {
    settle(rows_.front(), true);
    rows_.pop_front();
  }
  row_ -= rows;
  departed_from_ -= static_cast<long>(rows);
}

void Terminal::settle(Row& row, bool ended) {
  std::string text = std::move(row.text);
  if (row.returned) text.resize(without_padding(text).size());
  if (ended) text += '\n';
  settled_.push_back({std::move(text), row.returned && row.redrawn});
}

// The row is full: give out what it holds as the beginning of a line.
void Terminal::spill() {
  settle_top(row_);
  settled_.push_back({std::exchange(rows_[row_].text, {}), false});
  offset_ = 0;
  columns_beyond_ = 0;
}

}  // namespace ddip::client
