// What the main thread is waiting for in a collective of a group that the user made, and how to get it out of there.
// Python marks enter and leave; the control thread reads and, as the interrupt ladder's third rung, aborts.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ddip/base/describer.h"

namespace ddip::worker {

struct InCollective {
  std::string operation;  // "all_reduce"
  std::string group;      // torch's name of the process group
  uint64_t number = 0;    // how many this rank has entered on that group, this one included
  std::chrono::steady_clock::time_point since;

  bool operator==(const InCollective&) const = default;
};

class Collectives {
 public:
  void enter(const std::string& operation, const std::string& group);
  void leave();
  std::optional<InCollective> current() const;

  // The connected sockets that appeared while a process group was being made; listeners and the store's connection
  // are left out: closing those ends the process.
  void add_group(const std::string& group, const std::vector<int>& sockets);
  void remove_group(const std::string& group);
  // A communicator of ours in that group, which knows more than Python: which operation, who has not come.
  void add_describer(const std::string& group, Describer describer);
  // What those say that wait now, and for which group.
  struct Waiting {
    std::string group;
    std::string text;
  };
  std::vector<Waiting> waiting() const;

  // Shuts down the group's connections (all groups' if empty): a blocked Gloo operation then fails at once on both
  // ends. Returns the number of sockets shut down.
  int abort(const std::string& group);
  std::vector<std::string> dead_groups() const;

 private:
  struct Socket {
    int fd;
    uint64_t inode;  // descriptors are reused; an inode tells whether it is still the same socket
  };
  mutable std::mutex mutex_;
  std::optional<InCollective> current_;
  std::map<std::string, uint64_t> entered_;
  std::map<std::string, std::vector<Socket>> groups_;
  std::vector<std::string> dead_;
  std::map<std::string, Describer> describers_;
};

// Connected TCP sockets of this process, except those whose local or remote port is `store_port`.
std::vector<int> connected_sockets(int store_port);
// Those that lead to this port.
std::vector<int> connections_to(int port);

}  // namespace ddip::worker
