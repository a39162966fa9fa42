#include "ddip/coordinator/journal_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "ddip/base/crc32c.h"
#include "ddip/base/error.h"
#include "ddip/coordinator/journal_files.h"

namespace ddip::coordinator {
namespace fs = std::filesystem;
namespace {

std::optional<uint64_t> segment_after(const fs::path& folder, uint64_t first) {
  const auto firsts = list_segments(folder);
  const auto next = std::upper_bound(firsts.begin(), firsts.end(), first);
  if (next == firsts.end()) return std::nullopt;
  return *next;
}

// The one that holds `sequence`, else the oldest.
std::optional<uint64_t> segment_with(const fs::path& folder, uint64_t sequence) {
  const auto firsts = list_segments(folder);
  if (firsts.empty()) return std::nullopt;
  const auto next = std::upper_bound(firsts.begin(), firsts.end(), sequence);
  return next == firsts.begin() ? *next : *std::prev(next);
}

// Makes an unbroken story of what is on disk: each record once, and one gap wherever numbers are missing.
class Story {
 public:
  Story(uint64_t after, const RecordVisitor& visit) : told_(after), visit_(visit) {}

  // Whatever up to `through` was not told is gone. The first reason given for a gap stays.
  void missing(uint64_t through, std::string_view why, int64_t time_us = 0) {
    if (through <= std::max(told_, gap_.sequence)) return;
    if (gap_.sequence <= told_) {
      gap_.body = why;
      gap_.time_us = time_us;
    }
    gap_.sequence = through;
  }

  bool tell(const Record& record) {
    if (record.sequence <= told_) return true;
    if (record.kind == RecordKind::gap) {
      missing(record.sequence, record.body, record.time_us);
      return true;
    }
    missing(record.sequence - 1, kNotKept);
    if (!tell_gap()) return false;
    told_ = record.sequence;
    return visit_(record);
  }

  bool tell_gap() {
    if (gap_.sequence <= told_) return true;
    const uint64_t count = gap_.sequence - told_;
    gap_.body = fmt::format("{} record{} lost: {}", count, count == 1 ? "" : "s", gap_.body);
    told_ = gap_.sequence;
    return visit_(gap_);
  }

  static constexpr std::string_view kNotKept = "no longer kept";

 private:
  uint64_t told_;
  Record gap_{.rank = -1, .kind = RecordKind::gap, .body = {}};
  const RecordVisitor& visit_;
};

}  // namespace

Parsed parse_segment(std::string_view bytes, uint64_t before, const RecordVisitor& visit) {
  size_t at = 0;
  Record record;
  for (;;) {
    const std::string_view rest = bytes.substr(at);
    RecordHeader header;
    if (rest.size() < sizeof header) return {at, ParseEnd::incomplete};
    std::memcpy(&header, rest.data(), sizeof header);
    // The header has a sum of its own, or a flipped length would pass for a torn tail.
    if (header.mark != kJournalMark || header.header_crc != checksum(header) || header.sequence <= before ||
        header.zero != 0 || header.kind > static_cast<uint8_t>(RecordKind::gap)) {
      return {at, ParseEnd::damaged};
    }
    if (rest.size() - sizeof header < header.body_bytes) return {at, ParseEnd::incomplete};
    const std::string_view body = rest.substr(sizeof header, header.body_bytes);
    if (crc32c(body) != header.body_crc) return {at, ParseEnd::damaged};

    record.sequence = before = header.sequence;
    record.time_us = header.time_us;
    record.cell = header.cell;
    record.rank = header.rank;
    record.kind = static_cast<RecordKind>(header.kind);
    record.stream = header.stream;
    record.body = body;
    at += sizeof header + body.size();
    if (!visit(record)) return {at, ParseEnd::stopped};
  }
}

void read_journal(const fs::path& folder, uint64_t after, const RecordVisitor& visit) {
  if (after == UINT64_MAX) return;
  Story story(after, visit);
  const RecordVisitor tell = [&](const Record& record) { return story.tell(record); };

  auto first = segment_with(folder, after + 1);
  bool second_look = false;
  while (first) {
    story.missing(*first - 1, Story::kNotKept);
    SegmentReader segment(folder, *first);
    if (!segment.read(tell)) return;
    const auto next = segment_after(folder, *first);
    // Numbers missing between the two may be a race: more was written here before the next was begun; the listing,
    // taken during two rotations, shows the second only; this one held no whole record and was replaced. All of it is
    // settled by now, so a second look tells a race from a gap. The story knows what it has told.
    const bool seamless = !next || *next == segment.sequence() + 1;
    second_look = !seamless && !second_look;
    if (second_look) continue;
    if (!segment.damage().empty()) story.missing(segment.sequence() + 1, segment.damage());
    first = next;
  }
  story.tell_gap();
}

uint64_t read_acknowledged(const fs::path& folder, const std::string& client) {
  require_client_name(client);
  const fs::path path = acknowledgement_path(folder, client);
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) return 0;
  if (!file) throw_errno(path.string());
  std::array<char, 64> buffer;
  const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
  if (n < 0) throw_errno(path.string());
  const std::string_view text(buffer.data(), static_cast<size_t>(n));
  const auto sequence = parse_number(text.substr(0, text.find(' ')));
  // A damaged one counts as none: lines shown twice rather than not at all.
  return sequence && acknowledgement_text(*sequence) == text ? *sequence : 0;
}

}  // namespace ddip::coordinator
