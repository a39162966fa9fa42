// The warm parent: a process that has imported everything slow and forks workers on request. It runs on the main
// thread only (a worker's PDEATHSIG-like fate must not hang on a short-lived thread), reaps its children, and takes
// all of them along when the agent is gone.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <vector>

#include "ddip/base/fd.h"
#include "ddip/wire/message.h"

namespace ddip::worker {

// What a freshly forked worker is to be.
struct Birth {
  int rank = 0;
  uint32_t incarnation = 0;
  wire::json environment;
  std::vector<Fd> descriptors;  // control socket first, then, on rank 0, the store's listener
};

class WarmParent {
 public:
  // `fork_here` is Python's fork: it runs the interpreter's at-fork functions and returns as fork(2) does.
  WarmParent(Fd socket, std::function<pid_t()> fork_here);

  void say_warmed(wire::json report);

  // Serves until the agent is gone (nothing is returned, all children have been killed), or, in a child, returns who it
  // is.
  std::optional<Birth> serve();

 private:
  std::optional<Birth> on_message(wire::Message message);
  void reap_children();
  void kill_all();
  void send(const wire::Message& message);

  Fd socket_;
  std::function<pid_t()> fork_here_;
  struct Child {
    pid_t pid;
    Fd pidfd;  // not SIGCHLD: a thread of some imported library that does not block it would swallow it
  };
  std::vector<Child> children_;
};

}  // namespace ddip::worker
