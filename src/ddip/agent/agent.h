// One host's parent of workers: starts them (forked from the warm parent, or exec'd), notices their death, relays
// their messages. It decides nothing: the coordinator says what to spawn and what to kill.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "ddip/agent/process.h"
#include "ddip/net/loop.h"
#include "ddip/wire/message.h"

namespace ddip::agent {

enum class Start { fork, exec };

struct Options {
  std::string marker;       // value of DDIP_GROUP in every process of the group
  std::string python;       // interpreter of the workers
  std::string folder;       // working directory of the workers
  Environment environment;  // the user's, for the workers
  Start start = Start::fork;
  Fd store_listener;  // bound loopback port, handed to rank 0 to host the c10d store
  std::chrono::nanoseconds look_around = std::chrono::milliseconds(500);  // for orphans, while workers do something
};

class Agent {
 public:
  using Emit = std::function<void(wire::Message)>;

  // Emits joined, exited, host_note, and whatever workers send, stamped with their rank. Messages of a worker come in
  // order, and `exited` comes last.
  Agent(net::Loop& loop, Options options, Emit emit);
  ~Agent();

  // spawn and kill are for us; everything else goes to the worker of its rank, or to all in body["ranks"].
  void on_message(wire::Message message);

  // Starts warming before anyone asks for a worker.
  void warm_up();

  // SIGKILLs everything that carries the marker except this process. Blocks for some milliseconds; the end of a group.
  void sweep_all();

  // For info: pid of the warm parent (0: none), how workers are started.
  wire::json describe() const;

 private:
  struct Core;
  std::shared_ptr<Core> core_;  // callbacks of connections and timers hold it weakly
};

}  // namespace ddip::agent
