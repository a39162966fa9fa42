// Output by difference: what all ranks said is shown once; where ranks differ, each says its own.
//
//   all said the same                     epoch 1
//   ranks differ, then agree again        [0] rank 0
//                                         [1-3] rank 1
//                                         epoch 2
//
// Each rank's bytes go through a Terminal for each stream; lines that settled are compared, equal if text and stream
// are. A line that not all ranks have said waits at most 'patience' for the others, then it is shown as said by its
// ranks. The next line that all ranks have said ends the difference: what each rank said before it is aligned among
// those that have lines in common, a smaller set of ranks first (the odd one among eight tracebacks is on top), equal
// sets in rank order.
// Order is kept per rank, across its streams: of two lines the one that ended first is above. A bar counts as ended at
// its last '\n', if ordinary text of the rank follows on whichever stream. A rank that closed is not waited for.
//
// Two forms of display, one per object:
//   rerender  blocks() is the whole display. A line shown by some ranks becomes common in place, when the rest say it
//             and it is among the last 'window' lines. The text of all blocks that contain a rank and a stream is
//             what that rank wrote to that stream.
//   append    take_text() gives what is new, for a terminal; nothing is taken back. A line that not all ranks say
//             begins with its ranks, "[0] " or "[1-3,5] ". A line printed as "[0] ..." is later printed as "[1] ..."
//             for the late rank only: nothing is lost, nothing comes twice from one rank.
//
// Progress bars and lines without their '\n' are state, not text: bars(). They become text when they settle, at the
// latest at close(). Of the last frames of bars only those of the lowest rank that draws any are text (Bars::lowest):
// the others differ by their timings only.
//
// Limits. Ranks that say the same on both streams in another order are told apart there. Memory holds max_lines lines
// of display, 'window' lines per rank that may yet become common, and kMaxWaiting bytes that wait for patience; beyond
// it, lines are shown as said by their ranks although they waited less. Above max_lines the middle is left out and one
// marker says so. In the append form a line longer than Terminal::kMaxRowBytes is broken where another rank's text
// comes between its pieces.
//
// No clock, no thread, no lock: time is the caller's, and must not go backwards (if it does, it stands still).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddip::client {

class BlockDisplay;
class Lane;
class Transcript;
struct Words;

enum class Stream : uint8_t { out = 1, err = 2 };

struct Block {
  std::vector<int> ranks;  // ascending; all shown ranks: common
  Stream stream = Stream::out;
  std::string text;   // whole lines; the last lacks its '\n' where the rank's output did
  size_t elided = 0;  // above 0: this is the marker for so many lines of the display
  bool operator==(const Block&) const = default;
};

// What to append to the terminal, on its stream.
struct Text {
  Stream stream = Stream::out;
  std::string text;
  bool operator==(const Text&) const = default;
};

// "0", "1-3,5". REQUIRES: ascending.
std::string rank_list(const std::vector<int>& ranks);

class Difference {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Form { rerender, append };
  enum class Bars { lowest, every };
  static constexpr size_t kMaxWaiting = size_t{64} << 20;

  struct Options {
    Form form = Form::rerender;
    std::chrono::milliseconds patience{300};
    size_t max_lines = 10'000;  // display lines kept (append: lines between two take_text()); 0: all
    size_t window = 1'000;
    Bars bars = Bars::lowest;
  };

  // 'ranks' are those to be shown; what others write is ignored. Throws ConfigError if there are none.
  Difference(std::vector<int> ranks, Options options);
  explicit Difference(std::vector<int> ranks) : Difference(std::move(ranks), Options{}) {}
  ~Difference();

  void write(int rank, Stream stream, std::string_view bytes, Time now);
  // The rank will say no more in this cell. (If it does, it is open again: a late line is better shown than lost.)
  void close(int rank, Time now);
  // Patience with laggards runs out.
  void advance(Time now);
  // When advance() next has something to do.
  std::optional<Time> deadline() const;

  // Form::rerender. The display as of the last call that gave a time; valid until the next call of anything.
  const std::vector<Block>& blocks();
  // Blocks before this one are as they were at the last call of first_changed(); blocks().size() if nothing changed.
  size_t first_changed();

  // Form::append. What is new, adjacent text of one stream in one piece.
  std::vector<Text> take_text(Time now);

  // Live lines by rank, standard output first, without bars of ranks above one that draws bars (Bars::lowest). A front
  // end shows those of the first rank only.
  std::map<int, std::vector<std::string>> bars() const;

 private:
  struct Rank;  // what one rank wrote, as far as it has not settled

  std::optional<size_t> seat_of(int rank) const;
  bool is_behind_another_bar(size_t seat) const;
  bool is_shown(const std::vector<size_t>& seats, const Words& words) const;
  void say_settled(size_t seat, Stream stream);
  void say_finished_bars(size_t seat, Stream stream);
  void print(const std::vector<size_t>& seats, const Words& words);
  std::vector<int> ranks_of(const std::vector<size_t>& seats) const;

  const std::vector<int> ranks_;  // ascending; a seat is an index here
  const Options options_;
  Time now_{};
  std::vector<Rank> said_;  // by seat
  std::unique_ptr<Lane> lane_;
  std::unique_ptr<BlockDisplay> display_;   // Form::rerender
  std::unique_ptr<Transcript> transcript_;  // Form::append
};

}  // namespace ddip::client
