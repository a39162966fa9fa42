// Ranks as real processes: they find each other, die and leave.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "ddip/base/error.h"
#include "ddip/comm/shm/collectives.h"
#include "ddip/comm/shm/share.h"
#include "ddip/comm/shm/watch.h"

namespace ddip::comm::shm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The test's process makes the segment, its children inherit the mapping; what they find out they write into shared
// memory that the test reads afterwards.
struct Notes {
  std::atomic<int64_t> killed_at_ns;
  std::atomic<int64_t> told_at_ns[kMaxRanks];
  std::atomic<int> well[kMaxRanks];
};

int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

class ShmRanks : public testing::Test {
 protected:
  ShmRanks() : notes_memory(Segment::create(1, sizeof(Notes) + 4096)) {
    notes = new (notes_memory.arena(0).data()) Notes{};
  }
  ~ShmRanks() override {
    for (pid_t pid : pids) ::kill(pid, SIGKILL);
    for (pid_t pid : pids) ::waitpid(pid, nullptr, 0);
  }

  void start(int world, const std::function<void(Segment&, int)>& body) {
    segment = std::make_unique<Segment>(Segment::create(world, 8u << 20));
    for (int rank = 0; rank < world; ++rank) {
      pid_t pid = ::fork();
      if (pid == 0) {
        segment->line(rank).pid = ::getpid();
        try {
          body(*segment, rank);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
          ::_exit(1);
        }
        ::_exit(0);
      }
      pids.push_back(pid);
    }
  }
  void expect_all_end_well() {
    for (pid_t& pid : pids) {
      int status = 0;
      ::waitpid(pid, &status, 0);
      EXPECT_EQ(status, 0);
      pid = 0;
    }
    pids.clear();
  }

  Segment notes_memory;
  Notes* notes;
  std::unique_ptr<Segment> segment;
  std::vector<pid_t> pids;
};

}  // namespace

TEST_F(ShmRanks, killed_rank_ends_the_wait_of_all_others_at_once) {
  for (int round = 0; round < 50; ++round) {
    new (notes) Notes{};
    pids.clear();
    start(3, [&](Segment& shared, int rank) {
      Collectives ranks(shared, rank, 20s);
      ranks.barrier();
      Watch watch(shared, rank);
      ranks.barrier();
      float data = 0;
      if (rank == 1) {
        notes->killed_at_ns = now_ns();
        ::raise(SIGKILL);
      }
      try {
        ranks.all_reduce(&data, 1, {Element::f32});
      } catch (const PeerLost& error) {
        notes->told_at_ns[rank] = now_ns();
        notes->well[rank] = std::string(error.what()).find("rank 1 is lost") != std::string::npos;
      }
    });
    for (size_t rank : {0u, 2u}) ::waitpid(pids[rank], nullptr, 0);
    ::waitpid(pids[1], nullptr, 0);
    pids.clear();
    for (int rank : {0, 2}) {
      EXPECT_EQ(notes->well[rank], 1);
      // The promise is 0.1 s; a deadline is five times that.
      EXPECT_LT(notes->told_at_ns[rank] - notes->killed_at_ns, 500'000'000);
    }
  }
}

TEST_F(ShmRanks, half_a_step_is_never_kept) {
  start(2, [&](Segment& shared, int rank) {
    Collectives ranks(shared, rank, 20s);
    auto memory = ranks.allocate(100000 * sizeof(float));
    auto* data = reinterpret_cast<float*>(memory.get());
    ranks.barrier();
    Watch watch(shared, rank);
    for (size_t index = 0; index < 100000; ++index) data[index] = 1;
    if (rank == 1) ::raise(SIGKILL);
    try {
      ranks.all_reduce(data, 100000, {Element::f32});
    } catch (const PeerLost&) {
      notes->well[0] = 1;
    }
    for (size_t index = 0; index < 100000; ++index) {
      if (data[index] != 1) notes->well[0] = -1;
    }
  });
  ::waitpid(pids[0], nullptr, 0);
  ::waitpid(pids[1], nullptr, 0);
  pids.clear();
  EXPECT_EQ(notes->well[0], 1);
}

// Rank 1 came to the last meeting of an operation and died there; rank 0 sees the death before rank 2 comes. Rank 2
// would find that everybody has come.
TEST_F(ShmRanks, meeting_that_one_survivor_gave_up_takes_place_for_none) {
  start(3, [&](Segment& shared, int rank) {
    Meeting meeting(shared, rank, 20s);
    meeting.begin({.kind = Kind::barrier});
    Watch watch(shared, rank);
    meeting.again();
    if (rank == 2) {
      while (notes->told_at_ns[0] == 0) ::usleep(100);
    }
    try {
      meeting.again();
    } catch (const PeerLost& error) {
      notes->well[rank] = std::string(error.what()).find("rank 1 is lost") != std::string::npos;
      notes->told_at_ns[rank] = now_ns();
    }
  });
  auto until = Clock::now() + 10s;
  while (segment->line(1).stage < 3 && Clock::now() < until) ::usleep(100);
  ASSERT_EQ(segment->line(1).stage, 3u) << "rank 1 is in the last meeting";
  ::kill(pids[1], SIGKILL);
  for (size_t rank : {0u, 2u}) {
    int status = 0;
    ::waitpid(pids[rank], &status, 0);
    EXPECT_EQ(status, 0);
    pids[rank] = 0;
  }
  std::erase(pids, 0);
  EXPECT_EQ(notes->well[0], 1);
  EXPECT_EQ(notes->well[2], 1);
}

// Whenever a rank is killed, the others have completed the same number of operations.
TEST_F(ShmRanks, survivors_of_a_kill_at_any_moment_have_done_the_same) {
  std::minstd_rand random(11);
  for (int round = 0; round < 40; ++round) {
    new (notes) Notes{};
    pids.clear();
    start(4, [&](Segment& shared, int rank) {
      Collectives ranks(shared, rank, 20s);
      ranks.barrier();
      Watch watch(shared, rank);
      ranks.barrier();
      std::vector<float> data(8192, 1);
      try {
        for (;;) {
          ranks.all_reduce(data.data(), data.size(), {Element::f32, Reduction::mean});
          notes->well[rank] += 1;
        }
      } catch (const PeerLost&) {
        notes->told_at_ns[rank] = now_ns();
      }
    });
    auto until = Clock::now() + 10s;
    while (notes->well[3] < 5 && Clock::now() < until) ::usleep(50);
    ::usleep(static_cast<useconds_t>(random() % 2000));
    ::kill(pids[1], SIGKILL);
    for (pid_t pid : pids) ::waitpid(pid, nullptr, 0);
    pids.clear();
    for (int rank : {0, 2, 3}) {
      EXPECT_GT(notes->told_at_ns[rank], 0) << "rank " << rank << " was not told";
      EXPECT_EQ(notes->well[rank], notes->well[0]) << "round " << round << ", rank " << rank;
    }
    EXPECT_GE(notes->well[0], 5);
  }
}

TEST_F(ShmRanks, rank_that_left_in_good_order_is_missed_by_those_only_who_wait_for_it) {
  start(2, [&](Segment& shared, int rank) {
    Collectives ranks(shared, rank, 20s);
    ranks.barrier();
    Watch watch(shared, rank);
    ranks.barrier();
    if (rank == 1) {
      shared.leave(1);
      return;
    }
    while (::kill(pids.empty() ? shared.line(1).pid.load() : 0, 0) == 0 && shared.line(1).left == 0) ::usleep(1000);
    EXPECT_EQ(shared.header().poison.load(), 0u);
    auto begun = Clock::now();
    try {
      ranks.barrier();
    } catch (const PeerLost& error) {
      notes->well[0] =
          std::string(error.what()).find("which has left") != std::string::npos && Clock::now() - begun < 5s;
    }
  });
  expect_all_end_well();
  EXPECT_EQ(notes->well[0], 1);
}

TEST_F(ShmRanks, waiting_for_a_sleeper_costs_no_processor_time) {
  start(4, [&](Segment& shared, int rank) {
    Collectives ranks(shared, rank, 20s);
    ranks.barrier();
    if (rank == 0) ::usleep(1000000);
    rusage before{}, after{};
    ::getrusage(RUSAGE_SELF, &before);
    ranks.barrier();
    ::getrusage(RUSAGE_SELF, &after);
    auto micros = [](const timeval& time) { return time.tv_sec * 1000000 + time.tv_usec; };
    notes->told_at_ns[rank] =
        micros(after.ru_utime) + micros(after.ru_stime) - micros(before.ru_utime) - micros(before.ru_stime);
  });
  expect_all_end_well();
  for (int rank = 1; rank < 4; ++rank) EXPECT_LT(notes->told_at_ns[rank], 20000) << "of a second: 2%";
}

// A store as real as it needs to be: the parent's memory, shared by threads. Each "rank" is a thread of this process,
// so /proc/PID/fd is really opened.
TEST_F(ShmRanks, ranks_find_each_other_through_a_store) {
  struct MapStore : Store {
    void set(const std::string& key, const std::string& value) override {
      std::lock_guard lock(mutex);
      values[key] = value;
      changed.notify_all();
    }
    std::string get(const std::string& key) override {
      std::unique_lock lock(mutex);
      if (!changed.wait_for(lock, 5s, [&] { return values.contains(key); })) throw TimedOut(key);
      return values[key];
    }
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::string> values;
  } store;
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Segment shared = share(store, "here", rank, 3, 8u << 20);
      Collectives ranks(shared, rank, 5s);
      float one = 1;
      ranks.all_reduce(&one, 1, {Element::f32});
      right += one == 3;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 3);
  store.set("bad", "nonsense");
  EXPECT_THROW(share(store, "bad", 1, 3, 8u << 20), ProtocolError);
  store.set("gone", "999999999 3 1");
  EXPECT_THROW(share(store, "gone", 1, 3, 8u << 20), ConfigError);
}

}  // namespace ddip::comm::shm
