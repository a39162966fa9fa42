// How our own words look: colours on a terminal only, times and durations as people write them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddip::app {

struct Style {
  bool colour = false;
  bool terminal = false;

  std::string bold(std::string_view text) const { return paint("1", text); }
  std::string dim(std::string_view text) const { return paint("2", text); }
  std::string red(std::string_view text) const { return paint("31", text); }
  std::string green(std::string_view text) const { return paint("32", text); }
  std::string yellow(std::string_view text) const { return paint("33", text); }
  // Each rank its own, of six.
  std::string by_rank(int rank, std::string_view text) const;
  // A worker's text: its colours only where there are any.
  std::string foreign(std::string_view text) const;

 private:
  std::string paint(const char* code, std::string_view text) const;
};

// Without escape sequences.
std::string plain(std::string_view text);

// "0.3 s", "12 s", "5 min", "3.25 h", "4 d"
std::string duration(double seconds);
// "2026-11-15 05:44:28", local time.
std::string moment(double seconds_since_epoch);
// "3 lines", "1 line"
std::string counted(size_t number, std::string_view noun);
// "12 GiB", "64 MiB"
std::string bytes(double number);
// "rank 1", "ranks 0-2,5". REQUIRES: ascending.
std::string ranks_in_words(const std::vector<int>& ranks);
// No newline, no control character: what an error may say on its one line.
std::string one_line(std::string_view text);
// What does not fit is cut, and says so with "…".
std::string shortened(std::string_view text, size_t columns);

}  // namespace ddip::app
