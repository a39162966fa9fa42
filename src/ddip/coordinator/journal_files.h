// What lies in a journal's folder: names of files, the header before each record, one segment read in chunks. Private
// to the journal's writer and readers. JOURNAL.md has the tables.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ddip/base/fd.h"
#include "ddip/coordinator/journal_reader.h"

namespace ddip::coordinator {

static_assert(std::endian::native == std::endian::little, "headers are stored as they lie in memory");

inline constexpr uint32_t kJournalMark = 0x316a6464;  // "ddj1"

// On disk exactly so.
struct RecordHeader {
  uint32_t header_crc = 0;  // of the 44 bytes after it
  uint32_t body_crc = 0;
  uint64_t sequence = 0;
  int64_t time_us = 0;
  uint64_t cell = 0;
  int32_t rank = 0;
  uint32_t body_bytes = 0;
  uint8_t kind = 0;
  uint8_t stream = 0;
  uint16_t zero = 0;
  uint32_t mark = kJournalMark;
};
static_assert(sizeof(RecordHeader) == 48 && std::has_unique_object_representations_v<RecordHeader>);

std::string_view bytes_of(const RecordHeader& header);
uint32_t checksum(const RecordHeader& header);
// With the length and sums of this body.
RecordHeader sealed(RecordHeader header, std::string_view body);

std::string segment_name(uint64_t first);
// First sequences of the segments, ascending. No folder is an empty journal.
std::vector<uint64_t> list_segments(const std::filesystem::path& folder);

// Reads one segment, in chunks, as far as it is written; can be asked again for what came later.
class SegmentReader {
 public:
  // A segment deleted since it was listed reads as an empty one.
  SegmentReader(const std::filesystem::path& folder, uint64_t first);

  // False when visit said stop.
  bool read(const RecordVisitor& visit);

  uint64_t sequence() const { return sequence_; }  // of the last whole record; at first, the one before the segment
  uint64_t whole_bytes() const { return whole_bytes_; }
  const std::string& damage() const { return damage_; }  // "" when there is none

 private:
  Fd fd_;
  std::vector<char> buffer_;
  size_t held_ = 0;
  uint64_t sequence_;
  uint64_t whole_bytes_ = 0;
  std::string damage_;
};

// A client's acknowledgement is a file of its own.
inline constexpr std::string_view kAcknowledgementSuffix = ".ack";
bool is_client_name(std::string_view name);
void require_client_name(std::string_view name);  // throws ConfigError
std::filesystem::path acknowledgement_path(const std::filesystem::path& folder, const std::string& client);
std::string acknowledgement_text(uint64_t sequence);
std::optional<uint64_t> parse_number(std::string_view text);

}  // namespace ddip::coordinator
