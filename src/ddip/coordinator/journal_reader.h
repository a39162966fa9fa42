// Reads a group's journal: any number of readers in any process, while it is written and after. The bytes are described
// in JOURNAL.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

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
