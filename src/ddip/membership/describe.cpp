#include "ddip/membership/describe.h"

#include <fmt/format.h>

#include <algorithm>

namespace ddip::membership {

namespace {

std::string describe_member(const Member& member) {
  if (member.incarnation == 0) return "absent";
  const bool killed = member.alive && member.status != Status::starting && member.status != Status::ready;
  std::string text = name_of(member.status);
  if (!member.why.empty()) text += ": " + member.why;
  if (killed) text += ", killed but not yet gone";
  text += fmt::format(" (incarnation {}", member.incarnation);
  if (member.alive && member.pid != 0) text += fmt::format(", pid {}", member.pid);
  return text + ")";
}

}  // namespace

std::string describe(const State& state) {
  const auto ready =
      std::ranges::count_if(state.members, [](const Member& member) { return member.status == Status::ready; });
  std::string text =
      fmt::format("{}, epoch {}, {} of {} ready\n", name_of(state.phase), state.epoch, ready, state.members.size());
  for (size_t rank = 0; rank < state.members.size(); ++rank) {
    text += fmt::format("  rank {}  {}\n", rank, describe_member(state.members[rank]));
  }
  return text;
}

std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (first != 0) text += ", ";
    text += std::to_string(ranks[first]);
    if (last != first) text += (last == first + 1 ? ", " : "-") + std::to_string(ranks[last]);
    first = last + 1;
  }
  return text;
}

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::idle: return "idle";
    case Phase::starting: return "starting";
    case Phase::running: return "running";
    case Phase::stopping: return "stopping";
    case Phase::stopped: return "stopped";
  }
  return "?";
}

const char* name_of(Status status) {
  switch (status) {
    case Status::absent: return "absent";
    case Status::starting: return "starting";
    case Status::ready: return "ready";
    case Status::replacing: return "replacing";
    case Status::lost: return "lost";
  }
  return "?";
}

}  // namespace ddip::membership
