// Journal: all output of a group, on disk, so that nothing is lost when the notebook, the browser or the coordinator
// dies. One writer, any number of readers in any process, during and after. The bytes are described in JOURNAL.md.
//
// A record is in the kernel before append() returns: it survives SIGKILL of every process, but not a power cut (nothing
// is fsynced). A journal never grows over its cap: the oldest segment goes. Whatever is missing, for whatever reason,
// a reader sees as one gap record in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "ddip/base/fd.h"

namespace ddip::coordinator {

// Stored as numbers: add at the end, never reorder.
enum class RecordKind : uint8_t { cell_started, output, display, rank_done, cell_done, note, gap };

struct Record {
  uint64_t sequence = 0;  // 1, 2, 3, …; of a gap: the last one missing, so that reading after it goes on behind it
  int64_t time_us = 0;    // as the writer gave it; 0 in a gap whose time is not known
  uint64_t cell = 0;
  int32_t rank = 0;
  RecordKind kind = RecordKind::note;
  uint8_t stream = 0;
  std::string body;  // of a gap: "N records lost: why"

  bool operator==(const Record&) const = default;
};

// Return false to stop reading. The record is valid during the call only.
using RecordVisitor = std::function<bool(const Record&)>;

struct JournalOptions {
  uint64_t cap_bytes = 256ull << 20;  // all segments together; at least 4096. A record over half of it is not kept.
};

// The writer. Not thread-safe: one thread of one process owns it.
class Journal {
 public:
  // Creates the folder (0700, files 0600) or goes on after the last whole record of what is there.
  // Throws ConfigError: cap too small, folder open to others, or written by another process at this moment.
  // Throws std::system_error if nothing can be created there at all.
  Journal(std::filesystem::path folder, JournalOptions options);
  // Tries once more to write down what is missing.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Returns the sequence. Never throws for the disk's sake (full, broken, gone): such a record is lost and counted, and
  // the first append that works again writes a gap before itself. REQUIRES: kind is not gap; where RLIMIT_FSIZE may be
  // set, SIGXFSZ is ignored.
  uint64_t append(RecordKind kind, uint64_t cell, int32_t rank, uint8_t stream, std::string_view body, int64_t time_us);

  uint64_t last_sequence() const { return last_sequence_; }
  // How many of the newest records are not on disk, and why; 0 and "" when all is well.
  uint64_t unwritten() const { return last_sequence_ - written_sequence_; }
  const std::string& trouble() const { return trouble_; }

  // Client has seen everything up to sequence (at most last_sequence()). Never goes back. If the disk refuses, it holds
  // for the life of this object and the next, larger one is tried again. Throws ConfigError for a bad name.
  void acknowledge(const std::string& client, uint64_t sequence);
  uint64_t acknowledged(const std::string& client) const;

 private:
  struct Segment {
    uint64_t first;  // sequence, also its name
    uint64_t bytes;
  };

  void lock();
  void resume();
  bool write(std::span<const std::string_view> pieces, uint64_t through);
  bool open_segment();
  bool make_room(uint64_t bytes);
  bool refused(std::string why);

  const std::filesystem::path folder_;
  const JournalOptions options_;
  Fd lock_;

  Fd segment_;  // open for append: segments_.back(); closed after a torn write
  std::deque<Segment> segments_;
  uint64_t total_bytes_ = 0;  // of segments_; <= cap_bytes
  uint64_t last_sequence_ = 0;
  uint64_t written_sequence_ = 0;  // everything up to here is on disk, as a record or in a gap
  std::string trouble_;
  std::map<std::string, uint64_t> acknowledged_;
};

// Visits every whole record with sequence > after, in order, and one gap wherever sequences are missing. Ends quietly
// at a torn tail or where there is no journal. Opens only the segments it needs; memory: 256 KiB or the largest record.
void read_journal(const std::filesystem::path& folder, uint64_t after, const RecordVisitor& visit);

// What Journal::acknowledged() would say, for a reader that finds no coordinator alive.
uint64_t read_acknowledged(const std::filesystem::path& folder, const std::string& client);

enum class ParseEnd : uint8_t {
  incomplete,  // what is left is the beginning of a record, or nothing
  damaged,     // the next bytes are no record; nothing behind them can be trusted
  stopped,     // visit said so
};

struct Parsed {
  size_t bytes;  // of whole records visited
  ParseEnd end;
};

// Visits the whole records at the front of a segment's bytes, stored gaps included; `before` is the sequence ahead of
// them. Safe on any bytes.
Parsed parse_segment(std::string_view bytes, uint64_t before, const RecordVisitor& visit);

}  // namespace ddip::coordinator
