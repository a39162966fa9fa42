// For tests of code that takes descriptors 1 and 2 away: puts them back at the end, and then says again which checks
// failed meanwhile, because nobody saw it.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>

#include "ddip/base/fd.h"

namespace ddip {

class OwnOutput {
 public:
  OwnOutput() : out_(::dup(1)), err_(::dup(2)) { std::fflush(nullptr); }
  OwnOutput(const OwnOutput&) = delete;
  ~OwnOutput() { restore(); }

  void restore() {
    if (!out_) return;
    std::fflush(nullptr);
    ::dup2(out_.get(), 1);
    ::dup2(err_.get(), 2);
    out_.reset();
    err_.reset();
    const testing::TestResult* result = testing::UnitTest::GetInstance()->current_test_info()->result();
    for (int index = 0; index < result->total_part_count(); ++index) {
      const testing::TestPartResult& part = result->GetTestPartResult(index);
      if (part.failed())
        std::printf("%s:%d: %s\n", part.file_name() ? part.file_name() : "?", part.line_number(), part.message());
    }
    std::fflush(nullptr);
  }

 private:
  Fd out_, err_;
};

}  // namespace ddip
