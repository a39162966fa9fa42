// A worker's end of the control plane: reads the socket to the agent, never needs the GIL, answers while a cell
// computes. The main thread takes tasks from it, runs them, and hands output and endings back. "Control thread" below
// is whoever turns the loop: the main thread while it waits for a task, otherwise one of our own (handover.h).
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include "ddip/base/fd.h"
#include "ddip/net/loop.h"
#include "ddip/wire/channel.h"
#include "ddip/worker/capture.h"
#include "ddip/worker/collectives.h"
#include "ddip/worker/handover.h"

namespace ddip::worker {

struct ControlOptions {
  Fd socket;
  int rank = 0;
  uint32_t incarnation = 0;
  std::function<std::string()> read_stacks;     // without the GIL and without a signal
  std::function<void()> interrupt_interpreter;  // PyErr_SetInterrupt: safe from any thread
  wire::json about = wire::json::object();      // sent with `ready`
};

class Control {
 public:
  using Task = wire::Message;
  enum class Ended { yes };

  // Says ready. REQUIRES: called from the main thread, which is the one that gets SIGINT.
  explicit Control(ControlOptions options);
  // REQUIRES: main thread.
  ~Control();

  // ---- main thread

  // The next task; nothing when the time is over; Ended when the group stops.
  std::variant<std::monostate, Task, Ended> next_task(std::chrono::milliseconds patience);

  // From here to leave() an interrupt of this cell reaches the main thread, and its output is captured as the cell's.
  void enter(uint64_t cell);
  void leave();
  // Whether an interrupt may raise right now; asked by the SIGINT handler.
  bool armed() const;

  // The one ending of this task. Everything the cell wrote goes before it.
  void finish(uint64_t cell, wire::json body, std::vector<Fd> descriptors = {});

  // Asks the front end for a line. Throws ConfigError if there is none.
  // REQUIRES: called in a loop with short patience, so that the caller can look at signals in between.
  void ask(uint64_t cell, const std::string& prompt, bool secret);
  std::optional<std::string> asked_reply(std::chrono::milliseconds patience);

  // ---- any thread

  // Waits while more than a few megabytes are on their way: a flood is slowed down, not piled up. False: still full
  // after `patience`, nothing was written.
  bool write(uint64_t cell, Stream stream, std::string_view bytes, std::chrono::milliseconds patience);
  void display(uint64_t cell, wire::json bundle);
  void note(uint64_t cell, const std::string& text);

  // Whether everything that was written has left this process.
  bool say_all(std::chrono::milliseconds patience);

  Collectives& collectives() { return collectives_; }

 private:
  static constexpr double kLinesAtOnce = 64;

  struct Pending {
    wire::Message message;  // output messages carry their bytes here until they are sent
    std::string bytes;
    Stream stream{};
  };
  // How far the ladder has gone for the running cell. Owned by the control thread.
  struct Ladder {
    uint64_t cell = 0;
    net::Loop::Handle timer;
  };

  // What is known of a cell that goes on, or comes next, after another rank's has failed.
  struct AfterPeer {
    int peer = -1;
    std::chrono::steady_clock::time_point deadline;  // when it is asked to stop
    bool asked = false;
    std::optional<InCollective> aborted;
    // The last look.
    std::optional<InCollective> in;
    long ticks = -1;
    net::Loop::Handle timer;
  };

  std::unique_ptr<wire::Channel> open_channel();
  void on_message(wire::Message message);
  void on_interrupt(const wire::Message& message);
  void climb(uint64_t cell, int rung);
  void on_peer_failed(const wire::Message& message);
  void answer_why(const wire::Message& message);
  void look_after_peer(uint64_t cell);
  void abort_for_peer(uint64_t cell, AfterPeer& state);
  bool is_ahead(uint64_t cell);
  std::optional<InCollective> blocked_in(long ticks_before);
  bool blocked_in_torch(long ticks_before);
  bool still_running(uint64_t cell);
  bool send_interrupt(uint64_t cell, bool signal);
  void append(std::unique_lock<std::mutex>& lock, Pending pending);
  bool may_send_here(const Pending& pending);
  void wake();
  void flush(std::unique_lock<std::mutex>& lock);
  void send(Pending pending);

  ControlOptions options_;
  const pid_t main_thread_;
  net::Loop loop_;
  std::unique_ptr<wire::Channel> channel_;     // control thread; sending is for all
  Ladder ladder_;                              // control thread
  long ticks_at_signal_ = -1;                  // control thread
  std::map<uint64_t, AfterPeer> after_peers_;  // by cell; control thread
  Collectives collectives_;

  mutable std::mutex mutex_;         // guards all below
  std::condition_variable changed_;  // the end, a reply
  std::condition_variable room_;     // pending bytes were sent
  std::deque<Task> tasks_;
  uint64_t current_ = 0;            // cell that may be interrupted; 0: none
  uint64_t taken_ = 0;              // handed to the main thread, which has not entered it yet; 0: none
  bool interrupted_early_ = false;  // the taken one was interrupted: the ladder begins when it is entered
  std::chrono::steady_clock::time_point since_{};
  bool ended_ = false;
  bool waking_ = false;                  // the control thread will flush
  bool flushing_ = false;                // somebody does: one at a time, so that nothing overtakes
  double lines_at_once_ = kLinesAtOnce;  // that may still be sent by the thread that wrote them
  std::chrono::steady_clock::time_point lines_counted_{};
  std::deque<Pending> pending_;
  size_t pending_bytes_ = 0;
  std::optional<wire::json> reply_;
  std::pair<uint64_t, int> aborted_for_{0, -1};  // cell whose collective we aborted, and the rank that had failed

  Capture capture_;
  Handover handover_;  // last: its thread uses all of the above
};

}  // namespace ddip::worker
