// Output of several ranks on one terminal or pipe: whole lines only, never parts of two mixed, each with its rank in
// front. Standard output and standard error stay apart.
//
// On a terminal the newest unfinished line of the lowest rank (a progress bar, a prompt) is shown below and redrawn.
// Limit: a line over kMaxLine bytes is broken there.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "ddip/client/terminal.h"
#include "style.h"

namespace ddip::app {

class RankOutput {
 public:
  static constexpr size_t kMaxLine = size_t{1} << 20;

  // keep: every byte as it came. newest: of a line redrawn with '\r' the last frame.
  enum class Frames { keep, newest };

  struct Options {
    bool prefix = true;
    bool live = false;  // show the unfinished line: only with Frames::newest, and where 1 and 2 are a terminal
    Frames frames = Frames::newest;
    Style style;
    std::function<void(int stream, std::string_view bytes)> write;  // stream: 1 or 2
  };

  explicit RankOutput(Options options) : options_(std::move(options)) {}

  void write(int rank, int stream, std::string_view bytes);
  // The rank says no more: its unfinished lines are lines.
  void finish(int rank);
  void finish_all();
  // Our own words, on standard error, between lines.
  void say(std::string_view text);
  // Draws the unfinished line. Call it when nothing else is to be written.
  void refresh();

 private:
  struct Lane {
    client::Terminal terminal;  // Frames::newest
    std::string rest;           // the line so far
  };

  void settle(int rank, int stream, Lane& lane);
  void add_line(int rank, int stream, std::string_view line);
  void flush();
  void erase_live();
  std::string prefix(int rank) const;

  Options options_;
  std::map<std::pair<int, int>, Lane> lanes_;  // by rank and stream
  std::string ready_;                          // whole lines of one stream, to be written in one piece
  int ready_stream_ = 1;
  std::string shown_;  // the live line as drawn; empty: none
};

}  // namespace ddip::app
