// The ranks of one `ddip run`: started together, watched, ended together.
//
// A rank that fails takes the others with it: SIGTERM at once, SIGKILL after the grace. Signals for us go to all ranks;
// after a second one SIGTERM follows, after a third SIGKILL. Nothing that carries the run's marker is left behind,
// children of ranks included.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "context.h"
#include "ddip/base/ending.h"
#include "rank_output.h"
#include "signal_pipe.h"
#include "store_host.h"
#include "watchdog.h"

namespace ddip::app {

struct RunOptions {
  int ranks = 1;
  bool prefix = false;
  bool store = true;          // false: nobody listens on the port
  bool store_at_once = true;  // false: at the first knock
  std::chrono::duration<double> grace{5};
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;  // of all ranks
  std::string python;                              // for the store; empty: none
  int port = 0;
};

class Ranks {
 public:
  Ranks(RunOptions options, const Context& context);
  ~Ranks();

  // Returns the exit code: 0, or that of the first rank that failed, 128 + n for signal n.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    pid_t pid = 0;  // also its process group
    Fd pidfd;       // closed once it ended
    Fd out;
    Fd err;
  };

  void start_all();
  void start(int rank);
  std::map<std::string, std::string> environment_of(int rank) const;
  void turn(std::chrono::milliseconds patience);
  bool read_from(int rank, int stream);
  void on_ended(int rank);
  void on_signals();
  void send_all(int signal);
  void begin_grace();
  void kill_if_late();
  void write_out(int fd, std::string_view bytes);
  void drain();
  size_t alive() const;

  const RunOptions options_;
  const Context& context_;
  const std::string marker_;
  SignalPipe signals_;
  Watchdog watchdog_;
  StoreHost store_;
  RankOutput output_;
  std::vector<Rank> ranks_;
  int first_failure_ = 0;
  int presses_ = 0;
  bool ending_ = false;
  std::string killed_because_;  // SIGKILL went to all ranks; empty: it did not, or nobody is told
  Clock::time_point kill_at_ = Clock::time_point::max();
  const Clock::time_point begun_ = Clock::now();
};

}  // namespace ddip::app
