#include "ddip/coordinator/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/coordinator/journal_files.h"

namespace ddip::coordinator {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kSegmentsPerCap = 8;
constexpr uint64_t kSmallestCap = 4096;

std::string why_errno() { return std::strerror(errno); }

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
  const RecordHeader gap = sealed({.sequence = last_sequence_, .rank = -1, .kind = uint8_t(RecordKind::gap)}, trouble_);
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
    if (!reader.damage().empty()) last_sequence_ += 1 + (newest.bytes - reader.whole_bytes()) / sizeof(RecordHeader);
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
  const RecordHeader header = sealed(
      {.sequence = sequence, .time_us = time_us, .cell = cell, .rank = rank, .kind = uint8_t(kind), .stream = stream},
      body);
  if (!after_gap) {
    write(std::array{bytes_of(header), body}, sequence);
    return sequence;
  }
  const std::string why = trouble_;
  const RecordHeader gap =
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
