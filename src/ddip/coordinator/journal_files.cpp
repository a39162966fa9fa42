#include "ddip/coordinator/journal_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "ddip/base/crc32c.h"
#include "ddip/base/error.h"

namespace ddip::coordinator {
namespace fs = std::filesystem;
namespace {

constexpr size_t kChunkBytes = 256 << 10;
constexpr std::string_view kSegmentSuffix = ".seg";

}  // namespace

std::string_view bytes_of(const RecordHeader& header) {
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

uint32_t checksum(const RecordHeader& header) { return crc32c(bytes_of(header).substr(sizeof header.header_crc)); }

RecordHeader sealed(RecordHeader header, std::string_view body) {
  header.body_crc = crc32c(body);
  header.body_bytes = static_cast<uint32_t>(body.size());
  header.header_crc = checksum(header);
  return header;
}

std::string segment_name(uint64_t first) { return fmt::format("{:020}{}", first, kSegmentSuffix); }

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

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

SegmentReader::SegmentReader(const fs::path& folder, uint64_t first) : sequence_(first - 1) {
  const fs::path path = folder / segment_name(first);
  fd_ = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd_ && errno != ENOENT) throw_errno(path.string());
}

bool SegmentReader::read(const RecordVisitor& visit) {
  while (fd_ && damage_.empty()) {
    if (buffer_.size() < held_ + kChunkBytes) buffer_.resize(held_ + kChunkBytes);
    const ssize_t n = ::read(fd_.get(), buffer_.data() + held_, buffer_.size() - held_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) damage_ = std::strerror(errno);
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

}  // namespace ddip::coordinator
