// MPI in this process: one thread makes all calls, since MPI progresses only inside its calls and few of its builds are
// quick with several threads. Operations are begun with MPI_I…, looked at with MPI_Test, and have a deadline.
//
// MPI cannot give up a collective: after a timeout no more calls are made, what was under way keeps its memory as far
// as MPI is concerned, and the process ends by MPI_Abort. A rank that is killed, or ends with a status other than 0,
// ends the job: mpirun does that.
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

namespace ddip::mpi {

class Process {
 public:
  using Clock = std::chrono::steady_clock;
  // On our thread. Begins one operation, or throws.
  using Begin = std::function<void(MPI_Request& request)>;
  // On our thread: with the error, or without one and what MPI says of it.
  using Done = std::function<void(std::exception_ptr error, const MPI_Status& status)>;

  // The only one: MPI is initialised once. The first call does that, unless the program has.
  static Process& instance();

  int rank() const { return rank_; }
  int world() const { return world_; }

  // `receive`: MPI can take it back, so that its timeout ends nothing else.
  void start(Begin begin, std::chrono::milliseconds patience, std::string what, Done done, bool receive = false);
  // Waits. Throws TimedOut, or ConfigError with MPI's own words.
  void run(const Begin& begin, std::chrono::milliseconds patience, const std::string& what);
  // Anything that returns at once, on our thread.
  void call(const std::function<void()>& body);

 private:
  struct Pending {
    Begin begin;
    std::string what;
    std::chrono::milliseconds patience;
    Done done;
    bool receive;
    Clock::time_point deadline;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  Process();
  void initialise();
  void loop();
  void begin(Pending pending);
  // Whether something ended.
  bool look();
  void give_up(const Pending& late);
  // Whether it ended in time after all.
  static bool take_back(Pending& late, MPI_Status& status);
  // At exit, with the status of the process.
  void end(int status);

  // constant once initialised
  int rank_ = 0;
  int world_ = 1;
  bool initialised_here_ = false;
  int process_ = 0;  // not a child's that was forked from it
  // of our thread
  std::list<Pending> pending_;
  std::exception_ptr broken_;  // set: no more calls

  std::mutex mutex_;  // guards the next
  std::condition_variable changed_;
  std::deque<Pending> posted_;
  bool ready_ = false;
  bool stopping_ = false;
  int status_ = 0;
  std::exception_ptr failed_;  // to initialise
  std::thread thread_;
};

// Throws ConfigError, in MPI's own words, unless it is MPI_SUCCESS.
void check(int code, const char* what);

}  // namespace ddip::mpi
