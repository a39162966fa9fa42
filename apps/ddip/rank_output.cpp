#include "rank_output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>

namespace ddip::app {
namespace {

size_t terminal_columns() {
  winsize size{};
  return ::ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string RankOutput::prefix(int rank) const {
  return options_.prefix ? options_.style.by_rank(rank, fmt::format("[{}]", rank)) + " " : "";
}

void RankOutput::write(int rank, int stream, std::string_view bytes) {
  Lane& lane = lanes_[{rank, stream}];
  if (options_.frames == Frames::newest) {
    lane.terminal.write(bytes);
    settle(rank, stream, lane);
    return flush();
  }
  for (size_t end; (end = bytes.find('\n')) != std::string_view::npos; bytes.remove_prefix(end + 1)) {
    lane.rest += bytes.substr(0, end);
    add_line(rank, stream, lane.rest);
    lane.rest.clear();
  }
  lane.rest += bytes;
  if (lane.rest.size() > kMaxLine) add_line(rank, stream, std::exchange(lane.rest, {}));
  flush();
}

void RankOutput::settle(int rank, int stream, Lane& lane) {
  for (client::Terminal::Line& line : lane.terminal.take_settled()) {
    const bool ended = line.text.ends_with('\n');  // a very long line comes in pieces
    if (ended) line.text.pop_back();
    lane.rest += line.text;
    if (ended || lane.rest.size() > kMaxLine) add_line(rank, stream, std::exchange(lane.rest, {}));
  }
}

void RankOutput::finish(int rank) {
  for (int stream : {1, 2}) {
    auto found = lanes_.find({rank, stream});
    if (found == lanes_.end()) continue;
    Lane& lane = found->second;
    lane.terminal.finish();
    settle(rank, stream, lane);
    if (!lane.rest.empty()) add_line(rank, stream, lane.rest);
    lanes_.erase(found);
  }
  flush();
}

void RankOutput::finish_all() {
  while (!lanes_.empty()) finish(lanes_.begin()->first.first);
  erase_live();
}

void RankOutput::say(std::string_view text) {
  flush();
  erase_live();
  options_.write(2, fmt::format("{}\n", text));
}

void RankOutput::add_line(int rank, int stream, std::string_view line) {
  if (stream != ready_stream_) flush();
  ready_stream_ = stream;
  ready_ += prefix(rank);
  ready_ += line;
  ready_ += '\n';
}

void RankOutput::flush() {
  if (ready_.empty()) return;
  erase_live();
  options_.write(ready_stream_, std::exchange(ready_, {}));
}

void RankOutput::erase_live() {
  if (shown_.empty()) return;
  shown_.clear();
  options_.write(1, "\r\x1b[2K");
}

void RankOutput::refresh() {
  if (!options_.live) return;
  std::string line;
  for (const auto& [key, lane] : lanes_) {
    if (auto rows = lane.terminal.live(); !rows.empty()) line = rows.back();
    if (line.empty()) continue;
    line = prefix(key.first) + shortened(plain(line), terminal_columns() - (options_.prefix ? 6 : 1));
    break;
  }
  if (line == shown_) return;
  erase_live();
  if (line.empty()) return;
  options_.write(1, line);
  shown_ = line;
}

}  // namespace ddip::app
