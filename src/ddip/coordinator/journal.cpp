#include "ddip/coordinator/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "ddip/base/check.h"
#include "ddip/base/crc32c.h"
#include "ddip/base/error.h"

namespace ddip::coordinator {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "headers are stored as they lie in memory");

constexpr uint32_t kMark = 0x316a6464;  // "ddj1"
constexpr size_t kChunkBytes = 256 << 10;
constexpr uint64_t kSegmentsPerCap = 8;
constexpr uint64_t kSmallestCap = 4096;
constexpr std::string_view kSegmentSuffix = ".seg";
constexpr std::string_view kAcknowledgementSuffix = ".ack";

// On disk exactly so; JOURNAL.md has the table.
struct Header {
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
  uint32_t mark = kMark;
};
static_assert(sizeof(Header) == 48 && std::has_unique_object_representations_v<Header>);

std::string_view bytes_of(const Header& header) { return {reinterpret_cast<const char*>(&header), sizeof header}; }

uint32_t checksum(const Header& header) { return crc32c(bytes_of(header).substr(sizeof header.header_crc)); }

Header sealed(Header header, std::string_view body) {
  header.body_crc = crc32c(body);
  header.body_bytes = static_cast<uint32_t>(body.size());
  header.header_crc = checksum(header);
  return header;
}

std::string why_errno() { return std::strerror(errno); }

std::string segment_name(uint64_t first) { return fmt::format("{:020}{}", first, kSegmentSuffix); }

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// First sequences of the segments, ascending. No folder is an empty journal.
std::vector<uint64_t> list_segments(const fs::path& folder) {
  std::vector<uint64_t> firsts;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return firsts;
  if (error) throw std::system_error(error, "journal " + folder.string());
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename();
    if (name.size() != 20 + kSegmentSuffix.size() || !name.ends_with(kSegmentSuffix)) continue;
    const auto first = parse_number(std::string_view(name).substr(0, 20));
    if (first && *first > 0) firsts.push_back(*first);
  }
  std::sort(firsts.begin(), firsts.end());
  return firsts;
}

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

// Reads one segment, in chunks, as far as it is written; can be asked again for what came later.
class SegmentReader {
 public:
  // A segment deleted since it was listed reads as an empty one.
  SegmentReader(const fs::path& folder, uint64_t first) : sequence_(first - 1) {
    const fs::path path = folder / segment_name(first);
    fd_ = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd_ && errno != ENOENT) throw_errno(path.string());
  }

  // False when visit said stop.
  bool read(const RecordVisitor& visit) {
    while (fd_ && damage_.empty()) {
      if (buffer_.size() < held_ + kChunkBytes) buffer_.resize(held_ + kChunkBytes);
      const ssize_t n = ::read(fd_.get(), buffer_.data() + held_, buffer_.size() - held_);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) damage_ = why_errno();
      if (n <= 0) break;
      held_ += static_cast<size_t>(n);
      const Parsed parsed = parse_segment({buffer_.data(), held_}, sequence_, [&](const Record& record) {
        sequence_ = record.sequence;
        return visit(record);
      });
      held_ -= parsed.bytes;
      whole_bytes_ += parsed.bytes;
      std::memmove(buffer_.data(), buffer_.data() + parsed.bytes, held_);
      if (parsed.end == ParseEnd::stopped) return false;
      if (parsed.end == ParseEnd::damaged) damage_ = "damaged on disk";
    }
    return true;
  }

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

bool is_client_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-';
  });
}

void require_client_name(std::string_view name) {
  if (!is_client_name(name)) throw ConfigError("client name: expected 1 to 64 characters of A-Z a-z 0-9 _ . -");
}

fs::path acknowledgement_path(const fs::path& folder, const std::string& client) {
  return folder / (client + std::string(kAcknowledgementSuffix));
}

std::string acknowledgement_text(uint64_t sequence) {
  const std::string number = std::to_string(sequence);
  return fmt::format("{} {:08x}\n", number, crc32c(number));
}

bool write_new_file(const fs::path& path, std::string_view text) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

void make_private_folder(const fs::path& folder) {
  fs::create_directories(folder.parent_path());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) throw_errno("journal " + folder.string());
  struct stat found;
  if (::lstat(folder.c_str(), &found) != 0) throw_errno("journal " + folder.string());
  if (!S_ISDIR(found.st_mode) || found.st_uid != ::geteuid() || (found.st_mode & 077) != 0) {
    throw ConfigError(
        fmt::format("journal {}: expected a folder of yours that nobody else can open (chmod 700)", folder.string()));
  }
}

// Writes all pieces in one system call where the kernel takes them whole. Returns the bytes written; fewer: see errno.
size_t write_pieces(int fd, std::span<const std::string_view> pieces) {
  std::array<iovec, 4> parts;
  DDIP_CHECK(pieces.size() <= parts.size(), "a write is at most a gap and a record");
  size_t written = 0;
  for (;;) {
    size_t count = 0;
    size_t skip = written;
    for (std::string_view piece : pieces) {
      const size_t done = std::min(skip, piece.size());
      skip -= done;
      if (done < piece.size()) parts[count++] = {const_cast<char*>(piece.data()) + done, piece.size() - done};
    }
    if (count == 0) return written;
    const ssize_t n = ::writev(fd, parts.data(), static_cast<int>(count));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return written;
    written += static_cast<size_t>(n);
  }
}

}  // namespace

Parsed parse_segment(std::string_view bytes, uint64_t before, const RecordVisitor& visit) {
  size_t at = 0;
  Record record;
  for (;;) {
    const std::string_view rest = bytes.substr(at);
    Header header;
    if (rest.size() < sizeof header) return {at, ParseEnd::incomplete};
    std::memcpy(&header, rest.data(), sizeof header);
    // The header has a sum of its own, or a flipped length would pass for a torn tail.
    if (header.mark != kMark || header.header_crc != checksum(header) || header.sequence <= before ||
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

// The folder without a trailing slash, which would make lstat follow a link.
Journal::Journal(fs::path folder, JournalOptions options)
    : folder_(fs::absolute(folder.has_filename() ? folder : folder.parent_path())), options_(options) {
  if (options_.cap_bytes < kSmallestCap) {
    throw ConfigError(fmt::format("journal cap: {} bytes, expected at least {}", options_.cap_bytes, kSmallestCap));
  }
  make_private_folder(folder_);
  lock();
  resume();
  // The new segment comes first: its name keeps the sequence even when make_room deletes all the others.
  if (!open_segment() || !make_room(0)) throw_errno("journal " + folder_.string());
}

Journal::~Journal() {
  if (unwritten() == 0) return;
  const Header gap = sealed({.sequence = last_sequence_, .rank = -1, .kind = uint8_t(RecordKind::gap)}, trouble_);
  write(std::array{bytes_of(gap), std::string_view(trouble_)}, last_sequence_);
}

// A POSIX lock: it ends with this process, however that ends, and a forked child does not hold it.
void Journal::lock() {
  const fs::path path = folder_ / "lock";
  lock_ = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) throw_errno(path.string());
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  if (::fcntl(lock_.get(), F_SETLK, &whole) == 0) return;
  if (errno != EACCES && errno != EAGAIN) throw_errno(path.string());
  ::fcntl(lock_.get(), F_GETLK, &whole);
  throw ConfigError(fmt::format("journal {}: process {} is writing it", folder_.string(), whole.l_pid));
}

void Journal::resume() {
  for (uint64_t first : list_segments(folder_)) {
    segments_.push_back({first, fs::file_size(folder_ / segment_name(first))});
    total_bytes_ += segments_.back().bytes;
  }
  if (!segments_.empty()) {
    const Segment newest = segments_.back();
    SegmentReader reader(folder_, newest.first);
    reader.read([](const Record&) { return true; });
    last_sequence_ = reader.sequence();
    // Somebody may have seen what is behind the damage: skip every number that can have been used there.
    if (!reader.damage().empty()) last_sequence_ += 1 + (newest.bytes - reader.whole_bytes()) / sizeof(Header);
  }
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string client = entry.path().stem();
    if (entry.path().extension() != kAcknowledgementSuffix || !is_client_name(client)) continue;
    acknowledged_[client] = read_acknowledged(folder_, client);
    last_sequence_ = std::max(last_sequence_, acknowledged_[client]);
  }
  written_sequence_ = last_sequence_;
}

uint64_t Journal::append(RecordKind kind, uint64_t cell, int32_t rank, uint8_t stream, std::string_view body,
                         int64_t time_us) {
  DDIP_CHECK(kind != RecordKind::gap, "only the journal itself writes gaps");
  const bool after_gap = unwritten() > 0;
  const uint64_t sequence = ++last_sequence_;
  if (body.size() > options_.cap_bytes / 2 || body.size() > UINT32_MAX) {
    refused("larger than half the journal's cap");
    return sequence;
  }
  const Header header = sealed(
      {.sequence = sequence, .time_us = time_us, .cell = cell, .rank = rank, .kind = uint8_t(kind), .stream = stream},
      body);
  if (!after_gap) {
    write(std::array{bytes_of(header), body}, sequence);
    return sequence;
  }
  const std::string why = trouble_;
  const Header gap =
      sealed({.sequence = sequence - 1, .time_us = time_us, .rank = -1, .kind = uint8_t(RecordKind::gap)}, why);
  write(std::array{bytes_of(gap), std::string_view(why), bytes_of(header), body}, sequence);
  return sequence;
}

// On success everything up to `through` is on disk.
bool Journal::write(std::span<const std::string_view> pieces, uint64_t through) {
  uint64_t bytes = 0;
  for (std::string_view piece : pieces) bytes += piece.size();
  const bool full =
      segment_ && segments_.back().bytes > 0 && segments_.back().bytes + bytes > options_.cap_bytes / kSegmentsPerCap;
  if ((!segment_ || full) && !open_segment()) return false;
  if (!make_room(bytes)) return false;

  const size_t written = write_pieces(segment_.get(), pieces);
  if (written == bytes) {
    segments_.back().bytes += bytes;
    total_bytes_ += bytes;
    written_sequence_ = through;
    if (!trouble_.empty()) trouble_.clear();
    return true;
  }
  const std::string why = why_errno();
  if (written > 0) {
    // A torn record ends its segment. Bytes are never taken back: a reader may be looking at them.
    segments_.back().bytes += written;
    total_bytes_ += written;
    segment_.reset();
  }
  return refused(why);
}

// Named by the first sequence it will account for, be it by a gap.
bool Journal::open_segment() {
  const uint64_t first = written_sequence_ + 1;
  const fs::path path = folder_ / segment_name(first);
  if (!segments_.empty() && segments_.back().first == first) {
    // It holds no whole record. A fresh file under its name: those who read the old one keep it.
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return refused(why_errno());
    total_bytes_ -= segments_.back().bytes;
    segments_.pop_back();
  }
  segment_ = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600));
  if (!segment_) return refused(why_errno());
  segments_.push_back({first, 0});
  return true;
}

// Deletes old segments until `bytes` more fit under the cap.
bool Journal::make_room(uint64_t bytes) {
  while (total_bytes_ + bytes > options_.cap_bytes) {
    DDIP_CHECK(segments_.size() > 1, "what is being written fits under the cap");
    const fs::path oldest = folder_ / segment_name(segments_.front().first);
    if (::unlink(oldest.c_str()) != 0 && errno != ENOENT) return refused(why_errno());
    total_bytes_ -= segments_.front().bytes;
    segments_.pop_front();
  }
  return true;
}

bool Journal::refused(std::string why) {
  trouble_ = std::move(why);
  return false;
}

void Journal::acknowledge(const std::string& client, uint64_t sequence) {
  require_client_name(client);
  uint64_t& known = acknowledged_[client];
  sequence = std::min(sequence, last_sequence_);
  if (sequence <= known) return;
  known = sequence;
  const fs::path path = acknowledgement_path(folder_, client);
  const fs::path fresh = path.string() + "~";  // '~' is in no client's name
  if (write_new_file(fresh, acknowledgement_text(sequence))) ::rename(fresh.c_str(), path.c_str());
}

uint64_t Journal::acknowledged(const std::string& client) const {
  require_client_name(client);
  const auto known = acknowledged_.find(client);
  return known == acknowledged_.end() ? 0 : known->second;
}

}  // namespace ddip::coordinator
