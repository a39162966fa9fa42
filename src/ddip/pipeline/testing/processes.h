// Ranks as real processes of one test, which meet in a file. Torch computes in them only, never in the test's own
// process: its threads would not survive the fork.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "ddip/base/error.h"
#include "ddip/tensors/backends.h"

namespace ddip::pipeline {

using RankBody = std::function<void(const std::shared_ptr<tensors::Communicator>& ranks)>;

// In a rank, in place of EXPECT: a test's own macros would be heard by nobody there.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

// What `body` refuses with, or "nothing".
template <typename Kind = ConfigError>
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Kind& error) {
    return error.what();
  }
  return "nothing";
}

inline void on_ranks(int world, const RankBody& body) {
  const auto meeting = std::filesystem::temp_directory_path() / ("ddip-ranks-" + std::to_string(::getpid()));
  std::filesystem::remove(meeting);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t test = ::getpid(), pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != test) ::_exit(1);
      ::alarm(120);
      try {
        at::set_num_threads(1);
        auto store = c10::make_intrusive<c10d::FileStore>(meeting.string(), world);
        auto backend = tensors::make_backend("shm", {store, rank, world, std::chrono::seconds(60)});
        auto ranks = std::make_shared<tensors::Communicator>(backend, "shm", "a test");
        body(ranks);
        ranks->barrier();  // nobody leaves before all are done
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    pids.push_back(pid);
  }
  for (size_t rank = 0; rank < pids.size(); ++rank) {
    int status = 0;
    ::waitpid(pids[rank], &status, 0);
    EXPECT_EQ(status, 0) << "rank " << rank;
  }
  std::filesystem::remove(meeting);
}

}  // namespace ddip::pipeline
