// The only door to a group, for notebook, command line and C++ programs. Thread-safe, without a thread of its own: one
// of those who wait reads for all of them, so that an answer wakes nobody but the one it is for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "ddip/client/group_folder.h"
#include "ddip/net/blocking.h"
#include "ddip/wire/message.h"

namespace ddip::client {

using Milliseconds = std::chrono::milliseconds;
using wire::json;

// What a record of a cell says (the journal's kinds, see coordinator/JOURNAL.md).
enum class RecordKind : uint8_t { cell_started, output, display, rank_done, cell_done, note, gap };

// One event of a cell: a record, a payload (descriptors only) or an input request.
struct CellEvent {
  wire::Type type{};
  uint64_t cell = 0;
  int rank = wire::kNoRank;
  RecordKind kind{};
  uint8_t stream = 0;
  uint64_t sequence = 0;
  std::string bytes;
  json body = json::object();  // of an input request
  std::vector<Fd> descriptors;
};

struct Accepted {
  uint64_t cell = 0;
  json behind = json::array();  // unfinished cells on the same ranks, which come first
};

class Client {
 public:
  // Connects and shakes hands. `name` is this client's, for acknowledgements. Throws PeerLost, TimedOut.
  Client(const GroupFolder& folder, const std::string& name, Milliseconds patience = Milliseconds(5000));

  // What the coordinator said of the group when we came.
  const json& welcome() const { return welcome_; }

  // Sends and waits for the answer. Throws ConfigError if refused, TimedOut, PeerLost.
  json request(wire::Type type, json body, Milliseconds patience);
  void send(wire::Type type, json body, int rank = wire::kNoRank, uint64_t id = 0);

  // body: ranks ([] = all), kind, code, silent, …; descriptors are duplicated. With keep_all the events of this cell
  // are never dropped: if nobody takes them, nothing more is read. Otherwise old output gives way to a gap.
  Accepted execute(json body, const std::vector<int>& descriptors, Milliseconds patience, bool keep_all);

  // The next event of this cell (0: of cells that others asked for, after `watch`). Nothing: not yet, the time is over
  // or a signal came. Throws PeerLost when the group is gone.
  std::optional<CellEvent> next(uint64_t cell, Milliseconds patience);

  // Nobody will ask for this cell's events any more.
  void forget(uint64_t cell);

  // Until the coordinator's process has ended, the last of the group. False: not yet, the time is over or a signal
  // came.
  bool wait_for_end(Milliseconds patience);

 private:
  struct Queue {
    std::deque<CellEvent> events;
    size_t bytes = 0;
    uint64_t elided_lines = 0;
    bool keep_all = false;
  };

  using Time = std::chrono::steady_clock::time_point;

  enum class Waited { yes, time_over, signal };
  // Until `ready` holds or the connection is lost; reads if nobody else does.
  template <typename Ready>
  Waited wait(std::unique_lock<std::mutex>& lock, Time deadline, Ready ready);
  bool read(std::unique_lock<std::mutex>& lock, Time deadline);
  bool deliver();
  bool deliver(wire::Message& message);
  void put(Queue& queue, CellEvent event);
  wire::Message await(uint64_t number, Milliseconds patience, std::unique_lock<std::mutex>& lock);

  Fd socket_;
  Fd coordinator_;              // its pidfd
  net::BlockingReader reader_;  // of whoever set reading_
  json welcome_;
  std::mutex send_mutex_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool reading_ = false;                   // somebody reads
  std::deque<wire::Message> undelivered_;  // the first is for a full queue: nothing more is read until it has a place
  uint64_t last_request_ = 0;
  std::map<uint64_t, bool> keep_all_;                         // by request, until it is accepted
  std::map<uint64_t, std::optional<wire::Message>> answers_;  // by request
  std::map<uint64_t, Queue> queues_;                          // by cell
  std::string lost_;                                          // why the connection ended; empty while it lives
  bool watching_ = false;
};

}  // namespace ddip::client
