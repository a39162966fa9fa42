// Any bytes as the content of a journal segment: never a crash, and the answer does not depend on how they were cut.
// Odd inputs get correct checksums first, or the fuzzer would never come past them.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ddip/base/check.h"
#include "ddip/base/crc32c.h"
#include "ddip/coordinator/journal.h"

using namespace ddip::coordinator;

namespace {

constexpr size_t kHeaderBytes = 48;  // offsets: JOURNAL.md

void repair(std::string& bytes) {
  for (size_t at = 0; bytes.size() - at >= kHeaderBytes;) {
    char* header = bytes.data() + at;
    uint32_t body_bytes;
    std::memcpy(&body_bytes, header + 36, 4);
    const size_t left = bytes.size() - at - kHeaderBytes;
    // Half the lengths are left as they are, most of them beyond the end; the others are brought inside.
    if (body_bytes % 2 == 0) {
      body_bytes %= static_cast<uint32_t>(left % 300 + 1);
      std::memcpy(header + 36, &body_bytes, 4);
    }
    header[40] = static_cast<char>(static_cast<uint8_t>(header[40]) % 8);  // 7 is no kind
    header[42] = header[43] = 0;
    std::memcpy(header + 44, "ddj1", 4);
    const uint32_t body_crc = ddip::crc32c({header + kHeaderBytes, body_bytes < left ? body_bytes : left});
    std::memcpy(header + 4, &body_crc, 4);
    const uint32_t header_crc = ddip::crc32c({header + 4, kHeaderBytes - 4});
    std::memcpy(header, &header_crc, 4);
    if (body_bytes > left) return;
    at += kHeaderBytes + body_bytes;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 3, size - 3);
  if (data[0] % 2 == 1) repair(bytes);
  const size_t cut = (data[1] | data[2] << 8) % (bytes.size() + 1);

  std::vector<Record> whole;
  uint64_t sequence = 0;
  size_t length = 0;
  const Parsed parsed = parse_segment(bytes, 0, [&](const Record& record) {
    DDIP_CHECK(record.sequence > sequence, "sequences go up");
    DDIP_CHECK(record.kind <= RecordKind::gap, "only kinds there are");
    sequence = record.sequence;
    length += kHeaderBytes + record.body.size();
    whole.push_back(record);
    return true;
  });
  DDIP_CHECK(parsed.bytes == length && length <= bytes.size(), "counts what it visited");
  DDIP_CHECK(parsed.end != ParseEnd::stopped, "nobody said stop");

  std::vector<Record> pieces;
  const RecordVisitor collect = [&](const Record& record) {
    pieces.push_back(record);
    return true;
  };
  const std::string front = bytes.substr(0, cut);  // a copy, so that reading over its end is caught
  const Parsed first = parse_segment(front, 0, collect);
  if (first.end == ParseEnd::incomplete) {
    const Parsed second = parse_segment(std::string_view(bytes).substr(first.bytes),
                                        pieces.empty() ? 0 : pieces.back().sequence, collect);
    DDIP_CHECK(first.bytes + second.bytes == parsed.bytes && second.end == parsed.end, "a cut changes nothing");
  } else {
    DDIP_CHECK(first.bytes == parsed.bytes && parsed.end == ParseEnd::damaged, "damage stays damage");
  }
  DDIP_CHECK(pieces == whole, "a cut changes nothing");
  return 0;
}
