#include "ddip/coordinator/members.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ddip/base/log.h"
#include "ddip/membership/describe.h"

namespace ddip::coordinator {
namespace {

using namespace std::chrono_literals;
using wire::json;
using wire::Type;

constexpr auto kStopPatience = 400ms;

}  // namespace

Members::Members(net::Loop& loop, Options options, Events events)
    : loop_(loop),
      options_(std::move(options)),
      events_(std::move(events)),
      state_(membership::empty_group(static_cast<int>(options_.environments.size()))) {
  deadlines_.start_timeout = std::chrono::milliseconds(static_cast<int64_t>(options_.start_timeout * 1000));
}

// Carrying an action out may bring the next event at once (a process that cannot be started, say): it waits its turn,
// or the rest of this decision's actions would come after those of the next.
void Members::decide(const membership::Event& event) {
  waiting_.push_back(event);
  if (waiting_.size() > 1) return;
  while (!waiting_.empty()) {
    decide_one(waiting_.front());
    waiting_.pop_front();
  }
}

void Members::decide_one(const membership::Event& event) {
  membership::Decision decision =
      membership::decide(std::move(state_), event, std::chrono::steady_clock::now(), deadlines_);
  state_ = std::move(decision.state);
  if (!decision.reason.empty()) log("membership: {}", decision.reason);
  for (const membership::Action& action : decision.actions) {
    std::visit([this](const auto& what) { act(what); }, action);
  }
  deadline_.cancel();
  if (auto deadline = membership::next_deadline(state_, deadlines_)) {
    deadline_ = loop_.after(std::max(0ns, std::chrono::nanoseconds(*deadline - std::chrono::steady_clock::now())),
                            [this] { decide(membership::Tick{}); });
  }
}

void Members::act(const membership::Spawn& spawn) {
  json variables = environment(spawn.rank);
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(rebuilds_);
  events_.on_spawn(spawn.rank);
  events_.to_agent(
      {Type::spawn, spawn.rank, spawn.epoch, spawn.incarnation, {{"environment", std::move(variables)}}, {}});
}

void Members::act(const membership::Kill& kill) {
  if (phase() != membership::Phase::stopping) {
    const membership::Member& member = at(kill.rank);
    return send_kill(kill, member.status == membership::Status::lost ? "it " + member.why : "replaced on request");
  }
  // An orderly end first: atexit functions run, files are flushed. Those who do not go are killed soon.
  events_.to_agent({Type::stop, kill.rank, epoch(), 0, json::object(), {}});
  stop_kills_.push_back(kill);
  if (stop_patience_) return;
  stop_patience_ = loop_.after(kStopPatience, [this] {
    for (const membership::Kill& late : stop_kills_)
      send_kill(late, fmt::format("it did not leave within {} ms when the group stopped", kStopPatience.count()));
  });
}

void Members::send_kill(const membership::Kill& kill, const std::string& why) {
  events_.to_agent({Type::kill, kill.rank, 0, kill.incarnation, {{"why", why}}, {}});
}

void Members::act(const membership::AnnounceReady& ready) {
  events_.on_ready(ready.ranks);
  answer_restarts();
}

void Members::act(const membership::AnnounceLost& lost) {
  log("rank {} is lost: {}", lost.rank, lost.why);
  events_.on_lost(lost.rank, lost.why);
}

void Members::act(const membership::AnnounceStartFailed& failed) {
  events_.on_start_failed(failed.why);
  answer_restarts();
}

void Members::act(const membership::AnnounceStopped&) { events_.on_stopped(); }

void Members::act(const membership::Refuse& refuse) { refusal_ = refuse.why; }

void Members::restart(const std::set<int>& ranks, Restarted restarted) {
  if (static_cast<int>(ranks.size()) == size()) ++rebuilds_;  // nobody is left who knows the old store's keys
  refusal_.clear();
  restarts_.push_back({ranks, std::move(restarted)});
  replace({ranks.begin(), ranks.end()});
  if (refusal_.empty()) return;
  Restart refused = std::move(restarts_.back());
  restarts_.pop_back();
  refused.restarted(refusal_);
}

void Members::answer_restarts() {
  for (auto restart = restarts_.begin(); restart != restarts_.end();) {
    bool waiting = false;
    std::string failed;
    for (int rank : restart->ranks) {
      switch (at(rank).status) {
        case membership::Status::ready: break;
        case membership::Status::starting:
        case membership::Status::replacing: waiting = true; break;
        case membership::Status::lost: failed = fmt::format("rank {} did not come back: {}", rank, at(rank).why); break;
        case membership::Status::absent: failed = "the group stopped"; break;
      }
    }
    if (waiting) {
      ++restart;
      continue;
    }
    restart->restarted(failed);
    restart = restarts_.erase(restart);
  }
}

}  // namespace ddip::coordinator
