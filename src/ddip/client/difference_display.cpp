#include "ddip/client/difference_display.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ddip::client {
namespace {

std::string elision_marker(size_t lines) { return fmt::format("… {} lines elided (%diplog)\n", lines); }

// In lines that ranks said, not in lines of the display: one that ranks did not say at the same time takes two of
// those, and the reader compares with what the program printed.
std::string elision_marker(const std::map<int, size_t>& lines_of) {
  const auto by_lines = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [least, most] = std::minmax_element(lines_of.begin(), lines_of.end(), by_lines);
  if (least->second == most->second) return elision_marker(most->second);
  return fmt::format("… {} to {} lines of each rank elided (%diplog)\n", least->second, most->second);
}

}  // namespace

// ---- BlockDisplay

BlockDisplay::BlockDisplay(std::vector<int> all_ranks, size_t max_lines)
    : all_ranks_(std::move(all_ranks)), max_lines_(max_lines) {
  for (int rank : all_ranks_) elided_of_[rank] = 0;
}

void BlockDisplay::add_to_tail(std::vector<int> ranks, Stream stream, const std::string& text) {
  if (blocks_.empty() || blocks_.back().elided > 0 || blocks_.back().stream != stream ||
      blocks_.back().ranks != ranks) {
    blocks_.push_back({std::move(ranks), stream, "", 0});
    ends_.emplace_back();
  }
  blocks_.back().text += text;
  ends_.back().push_back(blocks_.back().text.size());
  changed_ = std::min(changed_, blocks_.size() - 1);
}

void BlockDisplay::add_final(std::vector<int> ranks, Stream stream, const std::string& text) {
  drop_tail();
  add_to_tail(std::move(ranks), stream, text);
  ++final_lines_;
  seal();
  elide();
}

void BlockDisplay::seal() {
  final_blocks_ = blocks_.size();
  final_in_last_ = blocks_.empty() ? 0 : ends_.back().size();
}

void BlockDisplay::drop_tail() {
  if (blocks_.size() > final_blocks_) changed_ = std::min(changed_, final_blocks_);
  blocks_.resize(final_blocks_);
  ends_.resize(final_blocks_);
  if (blocks_.empty() || ends_.back().size() == final_in_last_) return;
  ends_.back().resize(final_in_last_);
  blocks_.back().text.resize(final_in_last_ > 0 ? ends_.back().back() : 0);
  changed_ = std::min(changed_, final_blocks_ - 1);
}

size_t BlockDisplay::take_first_changed() {
  const size_t size = blocks_.size();
  return std::min(std::exchange(changed_, size), size);
}

// Keeps half of max_lines at the beginning and a quarter to a half at the end, so that the cost per line is constant.
void BlockDisplay::elide() {
  if (max_lines_ == 0) return;
  if (!marker_) {
    if (final_lines_ <= max_lines_) return;
    place_marker();
  }
  const size_t behind = final_lines_ - head_lines_;
  if (behind <= max_lines_ / 2) return;
  remove_behind_marker(behind - max_lines_ / 4);
  changed_ = std::min(changed_, *marker_);
  seal();
}

// Splits the display after max_lines / 2 lines.
void BlockDisplay::place_marker() {
  head_lines_ = max_lines_ / 2;
  changed_ = 0;  // once per display; the block that is split keeps its index and loses its end
  size_t index = 0;
  size_t left = head_lines_;
  while (left >= ends_[index].size()) left -= ends_[index++].size();
  if (left > 0) {
    Block rest = blocks_[index];
    const size_t cut = ends_[index][left - 1];
    rest.text.erase(0, cut);
    std::vector<size_t> rest_ends(ends_[index].begin() + static_cast<long>(left), ends_[index].end());
    for (size_t& end : rest_ends) end -= cut;
    blocks_[index].text.resize(cut);
    ends_[index].resize(left);
    ++index;
    blocks_.insert(blocks_.begin() + static_cast<long>(index), std::move(rest));
    ends_.insert(ends_.begin() + static_cast<long>(index), std::move(rest_ends));
  }
  blocks_.insert(blocks_.begin() + static_cast<long>(index), Block{all_ranks_, Stream::out, "", 0});
  ends_.insert(ends_.begin() + static_cast<long>(index), std::vector<size_t>());
  marker_ = index;
}

void BlockDisplay::remove_behind_marker(size_t lines) {
  final_lines_ -= lines;
  blocks_[*marker_].elided += lines;
  const size_t first = *marker_ + 1;
  size_t whole = first;
  while (lines > 0 && lines >= ends_[whole].size()) {
    count_elided(blocks_[whole], ends_[whole].size());
    lines -= ends_[whole++].size();
  }
  if (lines > 0) {
    count_elided(blocks_[whole], lines);
    const size_t cut = ends_[whole][lines - 1];
    blocks_[whole].text.erase(0, cut);
    ends_[whole].erase(ends_[whole].begin(), ends_[whole].begin() + static_cast<long>(lines));
    for (size_t& end : ends_[whole]) end -= cut;
  }
  blocks_.erase(blocks_.begin() + static_cast<long>(first), blocks_.begin() + static_cast<long>(whole));
  ends_.erase(ends_.begin() + static_cast<long>(first), ends_.begin() + static_cast<long>(whole));
  blocks_[*marker_].text = elision_marker(elided_of_);
}

void BlockDisplay::count_elided(const Block& block, size_t lines) {
  for (int rank : block.ranks) elided_of_[rank] += lines;
}

// ---- Transcript

void Transcript::add(const std::string& label, Stream stream, const std::string& line) {
  if (max_lines_ > 0 && lines_ >= max_lines_) {
    ++elided_;
    return;
  }
  ++lines_;
  const bool goes_on = unended_ && last_label_ == label && last_stream_ == stream;
  if (unended_ && !goes_on) piece(last_stream_) += '\n';
  std::string& text = piece(stream);
  if (!goes_on) text += label;
  text += line;
  unended_ = line.back() != '\n';
  last_label_ = label;
  last_stream_ = stream;
}

std::vector<Text> Transcript::take() {
  if (elided_ > 0) {
    if (unended_) piece(last_stream_) += '\n';
    piece(last_stream_) += elision_marker(elided_);
    unended_ = false;
  }
  elided_ = 0;
  lines_ = 0;
  return std::exchange(texts_, {});
}

std::string& Transcript::piece(Stream stream) {
  if (texts_.empty() || texts_.back().stream != stream) texts_.push_back({stream, ""});
  return texts_.back().text;
}

}  // namespace ddip::client
