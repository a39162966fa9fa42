// Journal: all output of a group, on disk, so that nothing is lost when the notebook, the browser or the coordinator
// dies. This is its one writer; journal_reader.h has the readers. The bytes are described in JOURNAL.md.
//
// A record is in the kernel before append() returns: it survives SIGKILL of every process, but not a power cut (nothing
// is fsynced). A journal never grows over its cap: the oldest segment goes. Whatever is missing, for whatever reason,
// a reader sees as one gap record in its place.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "ddip/base/fd.h"
#include "ddip/coordinator/journal_reader.h"

namespace ddip::coordinator {

struct JournalOptions {
  uint64_t cap_bytes = 256ull << 20;  // all segments together; at least 4096. A record over half of it is not kept.
};

// Not thread-safe: one thread of one process owns it.
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

}  // namespace ddip::coordinator
