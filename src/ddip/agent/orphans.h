// What workers leave behind. We are the subreaper of all that they start: who loses its parent becomes our child.
//
// An orphan belongs to the rank in its environment. Without one (cleared, or forked without exec) it belongs to the
// rank whose death made it an orphan: it was not there before. One that was there before, a daemon, is nobody's and
// stays until the group ends, or the death of one rank would end what another started. Limit: for about a second, twice
// the time between two looks, a new daemon cannot be told from the children of a rank that dies.
#pragma once

#include <sys/types.h>

#include <set>
#include <vector>

namespace ddip::agent {

class Orphans {
 public:
  // For the life of this process.
  Orphans();

  // `known` are our own children, here and below. Who has no owner and is seen twice, with the time between in which a
  // death is noticed, is nobody's. True: somebody was seen for the first time, so look again.
  bool look(const std::set<pid_t>& known);

  // The process of this rank is gone: so is what it left behind, with all below it.
  void end_those_of(int rank, const std::set<pid_t>& known);

 private:
  std::set<pid_t> seen_;  // once
  std::set<pid_t> nobodys_;
};

}  // namespace ddip::agent
