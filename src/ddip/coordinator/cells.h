// The life of cells: taken from a client, sent to the ranks, stopped on request, and for every rank exactly one ending,
// be it that the rank is lost. What ranks say meanwhile becomes records.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ddip/coordinator/door.h"
#include "ddip/coordinator/members.h"
#include "ddip/coordinator/records.h"
#include "ddip/coordinator/request_table.h"
#include "ddip/net/loop.h"
#include "ddip/wire/message.h"

namespace ddip::coordinator {

class Cells {
 public:
  struct Options {
    double settle = 10;  // seconds; after one rank failed, how long the others may go on
    double grace = 0;    // seconds after an interrupt until stuck ranks are replaced; 0: never
  };
  struct Events {
    std::function<void(wire::Message)> to_agent;
    std::function<void()> on_finished;  // every rank of a cell has ended
  };
  struct Group {
    Door& door;
    Members& members;
    Records& records;
  };

  Cells(net::Loop& loop, Group group, Options options, Events events);

  // From a client: both are answered.
  void execute(Session& session, wire::Message message);
  void interrupt(Session& session, const wire::Message& message);
  // A line for a rank that asked for one.
  void input_reply(wire::Message message);
  // Nobody is left to answer the ranks that ask for input in its cells.
  void client_left(const Session& session);

  // From a worker, stamped with its rank.
  void output(wire::Message message);
  void display(wire::Message message);
  void note(wire::Message message);
  void input_request(wire::Message message);
  void done(wire::Message message);

  // A new process plays this rank: what is known of the last one is not about it.
  void forget_rank(int rank);
  // How its process ended, for the obituary that lose() writes.
  void remember_ending(int rank, wire::json ending);
  // The rank is gone: so are its cells.
  void lose(int rank, const std::string& why);

  // For people, oldest first, without silent ones.
  wire::json describe_open() const;
  std::optional<uint64_t> first_open() const;
  bool any_open() const { return requests_.size() > 0; }
  uint64_t count() const { return count_; }  // of users' cells since the start

 private:
  struct Rank {
    std::string tail;  // the end of its output in cell `tail_of`
    uint64_t tail_of = 0;
    wire::json ending = wire::json::object();  // of its process, once that is known
  };

  Session* session_of(uint64_t cell);
  std::string why_not(int rank) const;
  void settle(Request& request, int rank, wire::json body);
  void record(const Request* request, const Records::About& about, std::string_view body);
  void refuse_input(uint64_t cell, int rank);
  void arm_grace(uint64_t cell);

  net::Loop& loop_;
  Door& door_;
  Members& members_;
  Records& records_;
  const Options options_;
  const Events events_;
  RequestTable requests_;
  std::vector<Rank> ranks_;
  std::map<uint64_t, std::set<int>> asking_;  // cell → ranks that wait for a line from the front end
  std::map<uint64_t, net::Loop::Handle> grace_timers_;
  uint64_t count_ = 0;
};

}  // namespace ddip::coordinator
