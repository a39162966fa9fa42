#include "ddip/agent/orphans.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>

#include "ddip/base/process_scan.h"

namespace ddip::agent {
namespace {

std::vector<pid_t> our_children_except(const std::set<pid_t>& known) {
  std::vector<pid_t> found;
  std::ifstream file(fmt::format("/proc/self/task/{}/children", ::getpid()));
  for (pid_t pid; file >> pid;) {
    if (!known.contains(pid)) found.push_back(pid);
  }
  return found;
}

std::string owner_of(pid_t pid) { return variable_of(pid, "DDIP_RANK"); }

}  // namespace

Orphans::Orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

bool Orphans::look(const std::set<pid_t>& known) {
  std::set<pid_t> seen, nobodys;
  for (pid_t pid : our_children_except(known)) {
    if (seen_.contains(pid) || nobodys_.contains(pid)) {
      if (::waitpid(pid, nullptr, WNOHANG) == 0) nobodys.insert(pid);
    } else if (owner_of(pid).empty()) {
      seen.insert(pid);
    }
  }
  seen_ = std::move(seen);
  nobodys_ = std::move(nobodys);
  return !seen_.empty();
}

void Orphans::end_those_of(int rank, const std::set<pid_t>& known) {
  const std::string ours = std::to_string(rank);
  for (pid_t orphan : our_children_except(known)) {
    if (nobodys_.contains(orphan)) continue;
    std::string owner = owner_of(orphan);
    if (owner != ours && !owner.empty()) continue;
    for (pid_t below : descendants_of(orphan)) ::kill(below, SIGKILL);
    ::kill(orphan, SIGKILL);
    ::waitpid(orphan, nullptr, WNOHANG);
  }
}

}  // namespace ddip::agent
