// Questions to workers' control threads: `why` to all that are in, `ping` to one. They come back as `stacks`. Who says
// nothing in time is described from outside.
#pragma once

#include <functional>
#include <map>
#include <set>

#include "ddip/coordinator/members.h"
#include "ddip/net/loop.h"
#include "ddip/wire/message.h"

namespace ddip::coordinator {

class Inquiries {
 public:
  using Answered = std::function<void(wire::json)>;

  Inquiries(net::Loop& loop, const Members& members, std::function<void(wire::Message)> to_agent);

  // Answered with one entry per rank, within a fraction of a second.
  void why(Answered answered);
  // All the way to a worker's control thread and back. Answered with nothing, or never.
  void ping(int rank, wire::Message message, Answered answered);
  // The message is a worker's `stacks`.
  void on_stacks(wire::Message message);

 private:
  struct Why {
    std::set<int> waiting;
    std::map<int, wire::json> said;
    net::Loop::Handle patience;
    Answered answered;
  };

  void finish(uint64_t number);

  net::Loop& loop_;
  const Members& members_;
  const std::function<void(wire::Message)> to_agent_;
  uint64_t last_number_ = 0;  // of both kinds
  std::map<uint64_t, Why> whys_;
  std::map<uint64_t, Answered> pings_;
};

}  // namespace ddip::coordinator
