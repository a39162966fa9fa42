// A client that is in: its connection, and what of the journal it follows.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "ddip/net/loop.h"
#include "ddip/wire/channel.h"

namespace ddip::coordinator {

// Which records a session is given, and how far it has come. Kept by Records.
struct Following {
  std::set<uint64_t> cells;      // asked for by this session, their end not yet given to it
  bool all = false;              // watches every cell of the group
  bool only_unfinished = false;  // …but nothing that was already over when it came:
  uint64_t first_cell = 0;       // cells before this one are the past
  uint64_t entered_at = 0;       // the journal's last record when it came
  uint64_t watch_request = 0;    // to be answered by caught_up; 0: none
  uint64_t cursor = 0;           // last journal record it has been given, or did not care for
  bool lagging = false;          // its queue was full: the rest comes from the journal
  bool late = false;             // wants nothing but what threads of cells say after the cells' ends
  bool late_left_out = false;    // its queue was full: some of that only the journal has
};

struct Session {
  uint64_t number = 0;
  std::string client;  // the name it gave: a notebook keeps it over kernel restarts
  pid_t pid = 0;
  std::unique_ptr<wire::Channel> channel;
  Following following;
  Fd pidfd;
  net::Loop::Handle died;

  // One that waits for late output stands beside another of the same client: it is nobody, and keeps no group alive.
  bool is_client() const { return !following.late; }

  // `request` is the client's own number.
  void answer(uint32_t epoch, uint64_t request, wire::json body) {
    channel->send({wire::Type::answer, wire::kNoRank, epoch, request, std::move(body), {}});
  }
  void refuse(uint32_t epoch, uint64_t request, const std::string& why) {
    channel->send({wire::Type::refused, wire::kNoRank, epoch, request, {{"why", why}}, {}});
  }
};

}  // namespace ddip::coordinator
