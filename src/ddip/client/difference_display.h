// Where lines go once it is known whose they are: the two forms of display. Private to output by difference.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddip/client/difference.h"

namespace ddip::client {

// Form::rerender. Final blocks, then the tail: lines shown but not decided, drawn anew at each change.
class BlockDisplay {
 public:
  BlockDisplay(std::vector<int> all_ranks, size_t max_lines);

  // Drops the tail.
  void add_final(std::vector<int> ranks, Stream stream, const std::string& text);
  void add_to_tail(std::vector<int> ranks, Stream stream, const std::string& text);
  void drop_tail();

  const std::vector<Block>& blocks() const { return blocks_; }
  // Blocks before it are as they were at the last call.
  size_t take_first_changed();

 private:
  void seal();
  void elide();
  void place_marker();
  void remove_behind_marker(size_t lines);
  void count_elided(const Block& block, size_t lines);

  const std::vector<int> all_ranks_;
  const size_t max_lines_;
  std::vector<Block> blocks_;
  std::vector<std::vector<size_t>> ends_;  // per block, where each of its lines ends in the text
  size_t final_blocks_ = 0;
  size_t final_in_last_ = 0;  // lines of the last final block; the tail may have added to it
  size_t final_lines_ = 0;
  size_t head_lines_ = 0;
  std::optional<size_t> marker_;
  std::map<int, size_t> elided_of_;  // rank → how many of the lines that it said
  size_t changed_ = 0;
};

// Form::append. It only grows.
class Transcript {
 public:
  explicit Transcript(size_t max_lines) : max_lines_(max_lines) {}

  // `label` comes before the line where it begins.
  void add(const std::string& label, Stream stream, const std::string& line);
  // What is new; lines beyond max_lines are left out with a marker.
  std::vector<Text> take();

 private:
  std::string& piece(Stream stream);

  const size_t max_lines_;
  std::vector<Text> texts_;
  size_t lines_ = 0;
  size_t elided_ = 0;
  bool unended_ = false;  // the last line given out has no '\n' yet
  std::string last_label_;
  Stream last_stream_ = Stream::out;
};

}  // namespace ddip::client
