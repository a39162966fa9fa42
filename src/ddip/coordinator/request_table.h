// Every cell, and for each of its ranks exactly one ending. Pure bookkeeping: no clock, no socket.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ddip/wire/message.h"

namespace ddip::coordinator {

struct Request {
  uint64_t cell = 0;
  uint64_t session = 0;  // who asked; its events go there
  bool silent = false;   // not a user's cell: neither journaled nor listed
  std::vector<int> ranks;
  std::set<int> open_ranks;  // no ending yet
  std::string first_line;    // of its source, for people
  double started = 0;        // seconds since the epoch, for people
  // Once all of its ranks have ended well: variables of workers that start later.
  wire::json environment = wire::json::object();
};

class RequestTable {
 public:
  Request& open(Request request);  // assigns the next cell number

  // The first ending of (cell, rank) wins. False: nobody waits for it (a second ending, an unknown cell or rank).
  bool settle(uint64_t cell, int rank);

  // Whether every rank has ended; then forget() it.
  bool finished(uint64_t cell) const;
  void forget(uint64_t cell);

  Request* find(uint64_t cell);
  const Request* find(uint64_t cell) const;
  std::vector<uint64_t> unfinished() const;
  std::vector<uint64_t> unfinished_on(int rank) const;
  size_t size() const { return requests_.size(); }

 private:
  uint64_t last_cell_ = 0;
  std::map<uint64_t, Request> requests_;
};

}  // namespace ddip::coordinator
