#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "ddip/coordinator/journal.h"

namespace ddip::coordinator {
namespace fs = std::filesystem;
namespace {

struct TempFolder {
  TempFolder() {
    std::string pattern = testing::TempDir() + "ddip-journal-XXXXXX";
    root = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { fs::remove_all(root); }
  fs::path root;
};

// Small enough to shrink, now and then large enough to fill a segment.
std::string any_body() {
  if (*rc::gen::inRange(0, 10) != 0) return *rc::gen::arbitrary<std::string>();
  return std::string(*rc::gen::inRange<size_t>(0, 6000), *rc::gen::arbitrary<char>());
}

Record append_any(Journal& journal) {
  Record record;
  record.kind = static_cast<RecordKind>(*rc::gen::inRange(0, static_cast<int>(RecordKind::gap)));
  record.cell = *rc::gen::arbitrary<uint64_t>();
  record.rank = *rc::gen::arbitrary<int32_t>();
  record.stream = *rc::gen::arbitrary<uint8_t>();
  record.time_us = *rc::gen::arbitrary<int64_t>();
  record.body = any_body();
  record.sequence = journal.append(record.kind, record.cell, record.rank, record.stream, record.body, record.time_us);
  return record;
}

std::vector<Record> read_all(const fs::path& folder, uint64_t after = 0) {
  std::vector<Record> records;
  read_journal(folder, after, [&](const Record& record) {
    records.push_back(record);
    return true;
  });
  return records;
}

fs::path newest_segment(const fs::path& folder) {
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".seg" && fs::file_size(entry.path()) > 0) newest = std::max(newest, entry.path());
  }
  return newest;
}

}  // namespace

RC_GTEST_PROP(JournalProperty, appends_and_reopens_read_back_equal_from_anywhere, ()) {
  TempFolder temp;
  const JournalOptions options{.cap_bytes = 1 << 20};  // never reached: segments rotate, nothing is deleted
  auto journal = std::make_unique<Journal>(temp.root, options);
  std::vector<Record> expected;
  for (int step = *rc::gen::inRange(0, 60); step > 0; --step) {
    if (*rc::gen::inRange(0, 6) == 0) {
      journal.reset();
      journal = std::make_unique<Journal>(temp.root, options);
    } else {
      expected.push_back(append_any(*journal));
      RC_ASSERT(expected.back().sequence == expected.size());
    }
    RC_ASSERT(journal->last_sequence() == expected.size());
  }
  const auto after = *rc::gen::inRange<size_t>(0, expected.size() + 1);
  RC_ASSERT(read_all(temp.root, after) ==
            std::vector<Record>(expected.begin() + static_cast<long>(after), expected.end()));
}

RC_GTEST_PROP(JournalProperty, torn_tails_between_writers_cost_what_was_torn_and_no_more, ()) {
  TempFolder temp;
  std::vector<Record> expected;
  for (int life = *rc::gen::inRange(1, 6); life > 0; --life) {
    {
      Journal journal(temp.root, {});
      RC_ASSERT(journal.last_sequence() == expected.size());
      for (int step = *rc::gen::inRange(1, 8); step > 0; --step) expected.push_back(append_any(journal));
    }
    // Cut anywhere in the last record, or not at all.
    const auto newest = newest_segment(temp.root);
    const auto cut = *rc::gen::inRange<size_t>(0, 48 + expected.back().body.size() + 1);
    fs::resize_file(newest, fs::file_size(newest) - cut);
    if (cut > 0) expected.pop_back();
    RC_ASSERT(read_all(temp.root) == expected);
  }
}

RC_GTEST_PROP(JournalProperty, under_any_cap_the_newest_are_kept_behind_one_gap, ()) {
  TempFolder temp;
  const JournalOptions options{.cap_bytes = *rc::gen::inRange<uint64_t>(16 << 10, 64 << 10)};
  auto journal = std::make_unique<Journal>(temp.root, options);
  std::vector<Record> expected;
  for (int step = *rc::gen::inRange(0, 150); step > 0; --step) {
    if (*rc::gen::inRange(0, 10) == 0) {
      journal.reset();
      journal = std::make_unique<Journal>(temp.root, options);
    }
    expected.push_back(append_any(*journal));
    uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(temp.root)) {
      if (entry.path().extension() == ".seg") bytes += entry.file_size();
    }
    RC_ASSERT(bytes <= options.cap_bytes);
  }
  auto records = read_all(temp.root);
  size_t gone = 0;
  if (!records.empty() && records.front().kind == RecordKind::gap) {
    gone = records.front().sequence;
    RC_ASSERT(std::stoull(records.front().body) == gone);
    records.erase(records.begin());
  }
  RC_ASSERT(records == std::vector<Record>(expected.begin() + static_cast<long>(gone), expected.end()));
}

}  // namespace ddip::coordinator
