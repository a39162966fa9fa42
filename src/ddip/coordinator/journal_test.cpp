#include "ddip/coordinator/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <set>
#include <vector>

#include "ddip/base/error.h"

namespace ddip::coordinator {
namespace fs = std::filesystem;

class JournalTest : public testing::Test {
 protected:
  JournalTest() {
    std::string pattern = testing::TempDir() + "ddip-journal-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    folder_ = root_ / "state" / "group";
  }
  ~JournalTest() override { fs::remove_all(root_); }

  fs::path root_;
  fs::path folder_;
};

// What a record says follows from its sequence, so that any reader can check it.
std::string body_of(uint64_t sequence) {
  return std::string(sequence * 37 % 700, static_cast<char>('a' + sequence % 26)) + std::to_string(sequence);
}

uint64_t append_next(Journal& journal) {
  const uint64_t sequence = journal.last_sequence() + 1;
  return journal.append(RecordKind::output, sequence / 10, static_cast<int32_t>(sequence % 4), 1, body_of(sequence),
                        static_cast<int64_t>(sequence));
}

std::vector<Record> read_all(const fs::path& folder, uint64_t after = 0) {
  std::vector<Record> records;
  read_journal(folder, after, [&](const Record& record) {
    records.push_back(record);
    return true;
  });
  return records;
}

uint64_t lost(const Record& gap) { return std::stoull(gap.body); }

// Every number after `after` is accounted for once and in order, by a record that says what it should or by a gap.
// Returns how many gaps there were.
int expect_unbroken(const std::vector<Record>& records, uint64_t after) {
  int gaps = 0;
  for (const Record& record : records) {
    if (record.kind == RecordKind::gap) {
      ++gaps;
      EXPECT_EQ(record.sequence, after + lost(record)) << record.body;
    } else {
      EXPECT_EQ(record.sequence, after + 1);
      EXPECT_EQ(record.body, body_of(record.sequence));
      EXPECT_EQ(record.time_us, static_cast<int64_t>(record.sequence));
    }
    after = record.sequence;
  }
  return gaps;
}

std::vector<fs::path> segments(const fs::path& folder) {
  std::set<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".seg") found.insert(entry.path());
  }
  return {found.begin(), found.end()};
}

uint64_t segment_bytes(const fs::path& folder) {
  uint64_t bytes = 0;
  for (const auto& path : segments(folder)) bytes += fs::file_size(path);
  return bytes;
}

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void spill(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

mode_t mode_of(const fs::path& path) {
  struct stat found;
  EXPECT_EQ(::lstat(path.c_str(), &found), 0) << path;
  return found.st_mode & 0777;
}

TEST_F(JournalTest, reads_back_every_field) {
  Journal journal(folder_, {});
  EXPECT_EQ(journal.last_sequence(), 0u);
  EXPECT_EQ(journal.append(RecordKind::display, 1ull << 60, -1, 2, std::string("a\0b", 3), -5), 1u);
  EXPECT_EQ(journal.append(RecordKind::cell_done, 7, 3, 0, "", 6), 2u);
  const std::vector<Record> expected = {{1, -5, 1ull << 60, -1, RecordKind::display, 2, std::string("a\0b", 3)},
                                        {2, 6, 7, 3, RecordKind::cell_done, 0, ""}};
  EXPECT_EQ(read_all(folder_), expected);
  EXPECT_EQ(read_all(folder_, 1), std::vector<Record>{expected[1]});
  EXPECT_TRUE(read_all(folder_, 2).empty());
  EXPECT_TRUE(read_all(folder_, UINT64_MAX).empty());
}

TEST_F(JournalTest, no_journal_reads_as_an_empty_one) {
  EXPECT_TRUE(read_all(folder_).empty());
  EXPECT_EQ(read_acknowledged(folder_, "nobody"), 0u);
}

TEST_F(JournalTest, reader_stops_when_told) {
  Journal journal(folder_, {});
  for (int i = 0; i < 9; ++i) append_next(journal);
  int seen = 0;
  read_journal(folder_, 0, [&](const Record&) { return ++seen < 4; });
  EXPECT_EQ(seen, 4);
}

TEST_F(JournalTest, is_closed_to_other_users) {
  const mode_t before = ::umask(0);
  Journal journal(folder_ / "", {});  // a trailing slash does not matter
  append_next(journal);
  journal.acknowledge("lab", 1);
  ::umask(before);
  EXPECT_EQ(mode_of(folder_), 0700u);
  for (const auto& entry : fs::directory_iterator(folder_)) EXPECT_EQ(mode_of(entry.path()), 0600u) << entry.path();
}

TEST_F(JournalTest, refuses_a_folder_open_to_others_a_link_and_a_tiny_cap) {
  fs::create_directories(folder_);
  ::chmod(folder_.c_str(), 0755);
  EXPECT_THROW(Journal(folder_, {}), ConfigError);
  ::chmod(folder_.c_str(), 0700);
  fs::create_directory_symlink(folder_, root_ / "link");
  EXPECT_THROW(Journal(root_ / "link", {}), ConfigError);
  EXPECT_THROW(Journal(root_ / "link" / "", {}), ConfigError);
  EXPECT_THROW(Journal(folder_, {.cap_bytes = 4095}), ConfigError);
  EXPECT_NO_THROW(Journal(folder_, {.cap_bytes = 4096}));
}

TEST_F(JournalTest, second_writer_is_refused_until_the_first_ends) {
  {
    Journal journal(folder_, {});
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        Journal second(folder_, {});
        ::_exit(0);
      } catch (const ConfigError&) {
        ::_exit(7);
      }
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    append_next(journal);
  }
  EXPECT_EQ(Journal(folder_, {}).last_sequence(), 1u);
}

TEST_F(JournalTest, torn_tail_at_every_byte_is_quiet_and_the_next_writer_goes_on) {
  {
    Journal journal(folder_, {});
    for (int i = 0; i < 3; ++i) append_next(journal);
  }
  const auto path = segments(folder_).front();
  const std::string bytes = slurp(path);
  const size_t last = bytes.size() - 48 - body_of(3).size();
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    if (cut < last && cut % 16 != 0) continue;  // the earlier records: a sample
    for (const auto& stale : segments(folder_)) fs::remove(stale);
    spill(path, std::string_view(bytes).substr(0, cut));
    const auto kept = read_all(folder_);
    EXPECT_EQ(expect_unbroken(kept, 0), 0);
    EXPECT_EQ(kept.size(), cut >= last ? 2u : kept.size()) << cut;
    Journal journal(folder_, {});
    ASSERT_EQ(append_next(journal), kept.size() + 1) << cut;
    const auto records = read_all(folder_);
    EXPECT_EQ(records.size(), kept.size() + 1) << cut;
    EXPECT_EQ(expect_unbroken(records, 0), 0) << cut;
  }
}

TEST_F(JournalTest, flipped_bit_anywhere_shows_as_one_gap_and_never_as_data) {
  {
    Journal journal(folder_, {});
    for (int i = 0; i < 4; ++i) append_next(journal);
    journal.append(RecordKind::note, 1, 0, 0, "", 5);
  }
  const auto original = read_all(folder_);
  const auto path = segments(folder_).front();
  const std::string bytes = slurp(path);
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] ^= static_cast<char>(1 << at % 8);
    spill(path, damaged);
    const auto records = read_all(folder_);
    ASSERT_FALSE(records.empty());
    for (size_t i = 0; i + 1 < records.size(); ++i) ASSERT_EQ(records[i], original[i]) << at;
    ASSERT_EQ(records.back().kind, RecordKind::gap) << at;
    ASSERT_EQ(records.back().sequence, records.size());
    ASSERT_EQ(records.back().body, "1 record lost: damaged on disk");
  }
}

TEST_F(JournalTest, damage_ends_its_segment_only) {
  Journal journal(folder_, {.cap_bytes = 64 << 10});
  while (segments(folder_).size() < 4) append_next(journal);
  const auto path = segments(folder_)[1];
  std::string bytes = slurp(path);
  bytes[bytes.size() / 2] ^= 1;
  spill(path, bytes);
  const auto records = read_all(folder_);
  EXPECT_EQ(expect_unbroken(records, 0), 1);
  EXPECT_EQ(records.back().sequence, journal.last_sequence());
}

TEST_F(JournalTest, numbers_behind_damage_are_never_used_again) {
  {
    Journal journal(folder_, {});
    for (int i = 0; i < 20; ++i) append_next(journal);
  }
  const auto path = segments(folder_).front();
  std::string bytes = slurp(path);
  bytes[50] ^= 1;
  spill(path, bytes);
  Journal journal(folder_, {});
  EXPECT_GT(append_next(journal), 20u);
  EXPECT_EQ(expect_unbroken(read_all(folder_), 0), 1);
  EXPECT_EQ(read_all(folder_).size(), 2u);
}

TEST_F(JournalTest, stays_under_its_cap_after_every_append_and_shows_one_gap) {
  constexpr uint64_t kCap = 64 << 10;
  Journal journal(folder_, {.cap_bytes = kCap});
  for (int i = 0; i < 3000; ++i) {
    append_next(journal);
    ASSERT_LE(segment_bytes(folder_), kCap);
  }
  EXPECT_GT(segment_bytes(folder_), kCap * 3 / 4);
  const auto records = read_all(folder_);
  EXPECT_EQ(expect_unbroken(records, 0), 1);
  EXPECT_EQ(records.front().kind, RecordKind::gap);
  EXPECT_EQ(records.back().sequence, 3000u);

  const uint64_t kept = records[1].sequence;
  EXPECT_EQ(expect_unbroken(read_all(folder_, kept - 1), kept - 1), 0);
  EXPECT_EQ(expect_unbroken(read_all(folder_, 10), 10), 1);  // the part of the gap this reader has not seen
  for (uint64_t after = kept; after <= 3000; ++after) ASSERT_EQ(read_all(folder_, after).size(), 3000 - after);
}

TEST_F(JournalTest, smaller_cap_on_reopen_holds_at_once_and_keeps_the_count) {
  {
    Journal journal(folder_, {.cap_bytes = 256 << 10});
    for (int i = 0; i < 400; ++i) append_next(journal);
  }
  {
    EXPECT_EQ(Journal(folder_, {.cap_bytes = 4096}).last_sequence(), 400u);
  }
  EXPECT_LE(segment_bytes(folder_), 4096u);
  Journal journal(folder_, {.cap_bytes = 4096});
  EXPECT_EQ(append_next(journal), 401u);
  EXPECT_EQ(expect_unbroken(read_all(folder_), 0), 1);
}

TEST_F(JournalTest, record_over_half_the_cap_is_a_gap_of_one) {
  Journal journal(folder_, {.cap_bytes = 4096});
  append_next(journal);
  EXPECT_EQ(journal.append(RecordKind::output, 0, 0, 0, std::string(2049, 'x'), 0), 2u);
  EXPECT_EQ(journal.unwritten(), 1u);
  EXPECT_EQ(journal.trouble(), "larger than half the journal's cap");
  append_next(journal);
  EXPECT_EQ(journal.unwritten(), 0u);
  EXPECT_EQ(journal.trouble(), "");
  const auto records = read_all(folder_);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(expect_unbroken(records, 0), 1);
  EXPECT_EQ(records[1].body, "1 record lost: larger than half the journal's cap");
  journal.append(RecordKind::output, 0, 0, 0, std::string(2048, 'x'), 0);
  EXPECT_EQ(journal.unwritten(), 0u);
  EXPECT_LE(segment_bytes(folder_), 4096u);
}

// A child that appends for ever, and what it says about it: the last sequence append() returned.
struct Flood {
  explicit Flood(const fs::path& folder, uint64_t cap_bytes, uint64_t count) {
    void* shared = ::mmap(nullptr, sizeof *returned, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    returned = new (shared) std::atomic<uint64_t>(0);
    pid = ::fork();
    if (pid != 0) return;
    try {
      Journal journal(folder, {.cap_bytes = cap_bytes});
      while (journal.last_sequence() < count) returned->store(append_next(journal));
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  ~Flood() {
    if (pid > 0) stop(SIGKILL);
    ::munmap(returned, sizeof *returned);
  }
  int stop(int signal) {
    int status = 0;
    if (signal != 0) ::kill(pid, signal);
    ::waitpid(pid, &status, 0);
    pid = 0;
    return status;
  }
  bool running() {
    siginfo_t info = {};
    return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }

  std::atomic<uint64_t>* returned;
  pid_t pid;
};

TEST_F(JournalTest, sigkill_of_the_writer_loses_nothing_it_returned) {
  for (uint64_t round = 1; round <= 20; ++round) {
    fs::remove_all(folder_);
    Flood flood(folder_, 1ull << 30, UINT64_MAX);
    while (flood.returned->load() < round * 997 && flood.running()) ::sched_yield();
    flood.stop(SIGKILL);
    const uint64_t returned = flood.returned->load();
    ASSERT_GE(returned, round * 997);
    const auto records = read_all(folder_);
    EXPECT_EQ(expect_unbroken(records, 0), 0);
    ASSERT_FALSE(records.empty());
    EXPECT_GE(records.back().sequence, returned);
    EXPECT_EQ(Journal(folder_, {}).last_sequence(), records.back().sequence);
  }
}

TEST_F(JournalTest, reader_beside_a_rotating_writer_meets_no_gap_that_is_not_there) {
  for (int round = 0; round < 10; ++round) {
    fs::remove_all(folder_);
    Flood flood(folder_, 3 << 20, 7000);  // ~2.8 MB: seven rotations, nothing deleted
    uint64_t after = 0;
    for (bool last = false; !last;) {
      last = !flood.running();
      const auto records = read_all(folder_, after);
      ASSERT_EQ(expect_unbroken(records, after), 0);
      if (!records.empty()) after = records.back().sequence;
    }
    EXPECT_EQ(flood.stop(0), 0);
    EXPECT_EQ(after, 7000u);
  }
}

TEST_F(JournalTest, reader_looks_again_before_it_calls_something_missing) {
  {
    Journal journal(folder_, {.cap_bytes = 64 << 10});
    while (segments(folder_).size() < 3) append_next(journal);
  }
  // The race, scripted: while the reader is in the first segment, it is replaced by a longer one and others follow.
  const fs::path racing = root_ / "racing";
  fs::create_directory(racing);
  const auto paths = segments(folder_);
  const size_t two_records = 2 * 48 + body_of(1).size() + body_of(2).size();
  spill(racing / paths[0].filename(), slurp(paths[0]).substr(0, two_records));
  std::vector<Record> records;
  read_journal(racing, 0, [&](const Record& record) {
    if (record.sequence == 2) {
      fs::copy(paths[0], racing / "longer");
      fs::rename(racing / "longer", racing / paths[0].filename());
      fs::copy(paths[1], racing);
      fs::copy(paths[2], racing);
    }
    records.push_back(record);
    return true;
  });
  EXPECT_EQ(records, read_all(folder_));
}

TEST_F(JournalTest, reader_overtaken_by_the_cap_counts_exactly_what_it_missed) {
  Flood flood(folder_, 16 << 10, 60000);  // a rotation every five records
  uint64_t after = 0;
  for (bool last = false; !last;) {
    last = !flood.running();
    const auto records = read_all(folder_, after);
    expect_unbroken(records, after);
    ASSERT_FALSE(HasFailure());
    if (!records.empty()) after = records.back().sequence;
  }
  EXPECT_EQ(flood.stop(0), 0);
  EXPECT_EQ(after, 60000u);
}

TEST_F(JournalTest, full_disk_costs_one_gap_and_the_group_goes_on) {
  // A tiny file system in a mount namespace of our own: it goes with this process, whatever happens.
  fs::create_directories(root_ / "disk");
  if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", (root_ / "disk").c_str(), "tmpfs", 0, "size=128k") != 0) {
    GTEST_SKIP() << "needs the right to mount; the RLIMIT_FSIZE test covers the rest";
  }
  struct Unmount {
    fs::path path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{root_ / "disk"};
  const fs::path folder = root_ / "disk" / "group";
  {
    Journal journal(folder, {});
    spill(root_ / "disk" / "filler", std::string(64 << 10, 'f'));
    while (journal.unwritten() == 0) append_next(journal);
    const uint64_t kept = journal.last_sequence() - 1;
    for (int i = 0; i < 500; ++i) append_next(journal);
    EXPECT_EQ(journal.trouble(), "No space left on device");
    // A few small ones may have slipped into the last page; what is there is true all the same.
    expect_unbroken(read_all(folder), 0);
    journal.acknowledge("lab", kept);
    EXPECT_EQ(journal.acknowledged("lab"), kept);
    EXPECT_LT(segments(folder).size(), 20u);  // failing must not litter

    const uint64_t before = journal.last_sequence();
    const uint64_t unwritten = journal.unwritten();
    ASSERT_GT(unwritten, 0u);
    fs::remove(root_ / "disk" / "filler");
    for (int i = 0; i < 10; ++i) append_next(journal);
    EXPECT_EQ(journal.unwritten(), 0u);
    const auto records = read_all(folder, before - unwritten);
    ASSERT_EQ(records.size(), 11u);
    EXPECT_EQ(expect_unbroken(records, before - unwritten), 1);
    EXPECT_EQ(records[0].body, fmt::format("{} records lost: No space left on device", unwritten));
  }
}

// No file of this process grows over `bytes`: write(2) tears, then fails with EFBIG.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit now{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_;
};

TEST_F(JournalTest, refused_writes_become_one_gap_even_across_reopen) {
  for (rlim_t bytes = 0; bytes < 300; bytes += 7) {  // torn at many places: in the first header, in a body, in a gap
    fs::remove_all(folder_);
    uint64_t kept = 0;
    {
      Journal journal(folder_, {});
      for (int i = 0; i < 3; ++i) append_next(journal);
      {
        FileLimit limit(bytes);
        for (int i = 0; i < 30; ++i) append_next(journal);
      }
      EXPECT_EQ(journal.last_sequence(), 33u);
      kept = 33 - journal.unwritten();
    }
    Journal journal(folder_, {});
    EXPECT_EQ(append_next(journal), 34u) << bytes;
    const auto records = read_all(folder_, kept);
    EXPECT_EQ(expect_unbroken(records, kept), kept == 33 ? 0 : 1) << bytes;
    expect_unbroken(read_all(folder_), 0);
    ASSERT_FALSE(HasFailure()) << bytes;
  }
}

TEST_F(JournalTest, torn_writes_count_towards_the_cap) {
  Journal journal(folder_, {.cap_bytes = 8192});
  FileLimit limit(600);
  for (int i = 0; i < 2000; ++i) {
    append_next(journal);
    ASSERT_LE(segment_bytes(folder_), 8192u);
  }
  expect_unbroken(read_all(folder_), 0);
}

TEST_F(JournalTest, acknowledgements_survive_reopen_and_never_go_back) {
  {
    Journal journal(folder_, {});
    for (int i = 0; i < 10; ++i) append_next(journal);
    journal.acknowledge("lab-1", 7);
    journal.acknowledge("lab-1", 3);
    journal.acknowledge("..", 2);
    journal.acknowledge("greedy", 999);
    EXPECT_EQ(journal.acknowledged("lab-1"), 7u);
  }
  EXPECT_EQ(read_acknowledged(folder_, "lab-1"), 7u);
  spill(folder_ / "not a client.ack", "5");
  Journal journal(folder_, {});
  EXPECT_EQ(journal.acknowledged("lab-1"), 7u);
  EXPECT_EQ(journal.acknowledged(".."), 2u);
  EXPECT_EQ(journal.acknowledged("greedy"), 10u);
  EXPECT_EQ(journal.acknowledged("stranger"), 0u);
  journal.acknowledge("lab-1", 6);
  EXPECT_EQ(journal.acknowledged("lab-1"), 7u);
  EXPECT_EQ(read_acknowledged(folder_, "lab-1"), 7u);
}

TEST_F(JournalTest, damaged_acknowledgement_counts_as_none) {
  {
    Journal journal(folder_, {});
    for (int i = 0; i < 10; ++i) append_next(journal);
    journal.acknowledge("lab", 3);
  }
  std::string text = slurp(folder_ / "lab.ack");
  text[0] = '9';
  for (const std::string& damaged : {text, std::string(), std::string("3"), std::string(100, '3')}) {
    spill(folder_ / "lab.ack", damaged);
    EXPECT_EQ(read_acknowledged(folder_, "lab"), 0u) << damaged;
  }
}

TEST_F(JournalTest, numbers_a_client_acknowledged_are_never_used_again) {
  {
    Journal journal(folder_, {});
    for (int i = 0; i < 10; ++i) append_next(journal);
    journal.acknowledge("lab", 10);
  }
  for (const auto& path : segments(folder_)) fs::remove(path);  // as after a power cut
  Journal journal(folder_, {});
  EXPECT_EQ(append_next(journal), 11u);
}

TEST_F(JournalTest, client_names_that_are_no_file_names_are_refused) {
  Journal journal(folder_, {});
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("../x"), std::string("a b"),
                                  std::string("a~"), std::string("a\0", 2), std::string("é"), std::string(65, 'a')}) {
    EXPECT_THROW(journal.acknowledge(name, 1), ConfigError) << name;
    EXPECT_THROW(journal.acknowledged(name), ConfigError) << name;
    EXPECT_THROW(read_acknowledged(folder_, name), ConfigError) << name;
  }
  EXPECT_NO_THROW(journal.acknowledge(std::string(64, 'a'), 1));
}

}  // namespace ddip::coordinator
