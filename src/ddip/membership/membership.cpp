#include "ddip/membership/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ddip/base/check.h"
#include "ddip/membership/describe.h"

namespace ddip::membership {

namespace {

bool awaited(const Member& member) { return member.status == Status::starting || member.status == Status::replacing; }

// At the deadline itself counts as late, or a Tick sent exactly then would decide nothing and be sent again at once.
bool overdue(const Member& member, Time now, const Options& options) {
  return awaited(member) && now - member.since >= options.start_timeout;
}

// One decision in the making: the event's overload below changes the state and collects the actions.
class Turn {
 public:
  Turn(State state, Time now, const Options& options)
      : now_(now), options_(options), decision_{.state = std::move(state), .actions = {}, .reason = {}} {}

  void operator()(const Begin&);
  void operator()(const Replace& replace);
  void operator()(const Stop&);
  void operator()(const Joined& joined);
  void operator()(const Exited& exited);
  void operator()(const Tick&);

  Decision finish() { return std::move(decision_); }

 private:
  State& state() { return decision_.state; }
  Member& member(int rank) { return state().members[static_cast<size_t>(rank)]; }
  void act(Action action) { decision_.actions.push_back(std::move(action)); }
  void because(std::string reason) { decision_.reason = std::move(reason); }
  void refuse(std::string why);

  template <typename Predicate>
  std::vector<int> ranks_where(Predicate predicate);
  std::vector<int> all_ranks() {
    return ranks_where([](const Member&) { return true; });
  }

  void enter(int rank, Status status, std::string why = {});
  void spawn(int rank);
  void kill(int rank);
  void replace_one(int rank);
  void exited_while_running(const Exited& exited);
  void fail_first_start(const std::vector<int>& ranks, const std::string& why);
  void kill_all();
  void stopped_once_all_exited();

  const Time now_;
  const Options& options_;
  Decision decision_;
};

void Turn::operator()(const Begin&) {
  if (state().phase != Phase::idle) {
    return refuse(fmt::format("a group starts once; this one is {}", name_of(state().phase)));
  }
  state().phase = Phase::starting;
  state().epoch = 1;
  for (int rank : all_ranks()) spawn(rank);
  because(fmt::format("starting {} workers", state().members.size()));
}

void Turn::operator()(const Replace& replace) {
  if (state().phase != Phase::running) {
    return refuse(fmt::format("only a running group can replace ranks; it is {}", name_of(state().phase)));
  }
  if (replace.ranks.empty()) return refuse("no rank to replace was named");
  const int world_size = static_cast<int>(state().members.size());
  for (int rank : replace.ranks) {
    if (rank >= 0 && rank < world_size) continue;
    return refuse(fmt::format("no rank {}; ranks are 0 to {}", rank, world_size - 1));
  }
  // One epoch for the whole request, before any spawn carries it.
  const auto is_ready = [&](int rank) { return member(rank).status == Status::ready; };
  if (std::ranges::any_of(replace.ranks, is_ready)) ++state().epoch;
  for (int rank : replace.ranks) replace_one(rank);
  because("replacing ranks on request");
}

void Turn::operator()(const Stop&) {
  if (state().phase == Phase::stopped) return refuse("the group has stopped already");
  if (state().phase == Phase::stopping) return because("already stopping");
  const std::vector<int> unanswered = ranks_where(awaited);
  if (!unanswered.empty()) {
    act(AnnounceStartFailed{unanswered, "the group was stopped before " + describe_ranks(unanswered) + " joined"});
  }
  kill_all();
  because("stopping on request");
}

void Turn::operator()(const Joined& joined) {
  if (!is_current(state(), joined.rank, joined.incarnation)) return because("ignored a join of an old incarnation");
  if (member(joined.rank).status != Status::starting) return because("ignored a join that is not awaited");
  enter(joined.rank, Status::ready);
  member(joined.rank).pid = joined.pid;
  because(fmt::format("rank {} joined", joined.rank));
  if (state().phase == Phase::running) {
    act(AnnounceReady{++state().epoch, {joined.rank}});
  } else if (ranks_where(awaited).empty()) {
    state().phase = Phase::running;
    act(AnnounceReady{state().epoch, all_ranks()});
    because("all ranks joined");
  }
}

void Turn::operator()(const Exited& exited) {
  if (!is_current(state(), exited.rank, exited.incarnation)) return because("ignored an exit of an old incarnation");
  member(exited.rank).alive = false;
  because(fmt::format("rank {} exited: {}", exited.rank, exited.why));
  switch (state().phase) {
    case Phase::starting:
      return fail_first_start({exited.rank}, fmt::format("rank {} exited during start: {}", exited.rank, exited.why));
    case Phase::running: return exited_while_running(exited);
    case Phase::stopping: return stopped_once_all_exited();
    case Phase::idle:
    case Phase::stopped: DDIP_CHECK(false, "no process is alive in this phase");
  }
}

void Turn::operator()(const Tick&) {
  const std::vector<int> late = ranks_where([&](const Member& m) { return overdue(m, now_, options_); });
  if (late.empty()) return because("nothing is overdue");
  const double seconds = std::chrono::duration<double>(options_.start_timeout).count();
  const std::string why =
      fmt::format("{} did not join within {:g} s; see what they printed, or raise the start timeout",
                  describe_ranks(late), seconds);
  because(why);
  if (state().phase == Phase::starting) return fail_first_start(late, why);
  act(AnnounceStartFailed{late, why});
  for (int rank : late) {
    const char* awaited_step = member(rank).status == Status::replacing ? "exit when killed" : "join";
    kill(rank);
    enter(rank, Status::lost, fmt::format("did not {} within {:g} s", awaited_step, seconds));
  }
}

void Turn::refuse(std::string why) {
  because("refused: " + why);
  act(Refuse{std::move(why)});
}

template <typename Predicate>
std::vector<int> Turn::ranks_where(Predicate predicate) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < state().members.size(); ++rank) {
    if (predicate(state().members[rank])) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void Turn::enter(int rank, Status status, std::string why) {
  member(rank).status = status;
  member(rank).since = now_;
  member(rank).why = std::move(why);
}

void Turn::spawn(int rank) {
  DDIP_CHECK(!member(rank).alive, "a rank is spawned only after its old process exited");
  enter(rank, Status::starting);
  member(rank).alive = true;
  member(rank).pid = 0;
  act(Spawn{rank, ++member(rank).incarnation, state().epoch});
}

// Does nothing for a process that is gone or already killed.
void Turn::kill(int rank) {
  const Status status = member(rank).status;
  const bool killed = status != Status::starting && status != Status::ready;
  if (member(rank).alive && !killed) act(Kill{rank, member(rank).incarnation});
}

void Turn::replace_one(int rank) {
  if (awaited(member(rank))) return;  // asked for twice: the replacement under way answers both
  if (!member(rank).alive) return spawn(rank);
  if (member(rank).status == Status::ready) {
    act(AnnounceLost{rank, member(rank).incarnation, "replaced on request"});
  }
  kill(rank);
  enter(rank, Status::replacing);
}

void Turn::exited_while_running(const Exited& exited) {
  switch (member(exited.rank).status) {
    case Status::starting:
      act(AnnounceStartFailed{{exited.rank}, fmt::format("rank {} exited during start: {}", exited.rank, exited.why)});
      return enter(exited.rank, Status::lost, "exited during start: " + exited.why);
    case Status::ready:
      ++state().epoch;
      act(AnnounceLost{exited.rank, exited.incarnation, exited.why});
      return enter(exited.rank, Status::lost, exited.why);
    case Status::replacing: return spawn(exited.rank);
    case Status::lost: return;  // given up earlier, and announced then
    case Status::absent: DDIP_CHECK(false, "every rank of a running group has been spawned");
  }
}

void Turn::fail_first_start(const std::vector<int>& ranks, const std::string& why) {
  act(AnnounceStartFailed{ranks, why});
  because(why);
  kill_all();
}

void Turn::kill_all() {
  state().phase = Phase::stopping;
  for (int rank : all_ranks()) {
    kill(rank);
    enter(rank, Status::absent);
  }
  stopped_once_all_exited();
}

void Turn::stopped_once_all_exited() {
  if (std::ranges::any_of(state().members, &Member::alive)) return;
  state().phase = Phase::stopped;
  act(AnnounceStopped{});
}

}  // namespace

State empty_group(int world_size) {
  DDIP_CHECK(world_size > 0, "a group has at least one rank");
  State state;
  state.members.resize(static_cast<size_t>(world_size));
  return state;
}

Decision decide(State state, const Event& event, Time now, const Options& options) {
  Turn turn(std::move(state), now, options);
  std::visit(turn, event);
  return turn.finish();
}

bool is_current(const State& state, int rank, uint32_t incarnation) {
  if (rank < 0 || static_cast<size_t>(rank) >= state.members.size()) return false;
  const Member& member = state.members[static_cast<size_t>(rank)];
  return member.alive && member.incarnation == incarnation;
}

bool accepts_epoch(const State& state, uint32_t epoch) { return epoch != 0 && epoch == state.epoch; }

std::optional<Time> next_deadline(const State& state, const Options& options) {
  std::optional<Time> earliest;
  for (const Member& member : state.members) {
    if (awaited(member)) earliest = std::min(earliest.value_or(Time::max()), member.since + options.start_timeout);
  }
  return earliest;
}

}  // namespace ddip::membership
