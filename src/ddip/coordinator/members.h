// The ranks of the group: feeds membership/ with what happens and carries its decisions out, in order.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ddip/membership/membership.h"
#include "ddip/net/loop.h"
#include "ddip/wire/message.h"

namespace ddip::coordinator {

class Members {
 public:
  struct Options {
    std::vector<wire::json> environments;  // per rank
    double start_timeout = 60;             // seconds
  };
  struct Events {
    std::function<void(wire::Message)> to_agent;
    std::function<void(int rank)> on_spawn;                       // a new process is about to play it
    std::function<void(const std::vector<int>& ranks)> on_ready;  // first all of them, later each replacement
    std::function<void(const std::string& why)> on_start_failed;  // of the group, or of a replacement
    std::function<void(int rank, const std::string& why)> on_lost;
    std::function<void()> on_stopped;  // every worker is gone
  };
  // `failed` says why they did not come back; empty: they did.
  using Restarted = std::function<void(const std::string& failed)>;

  Members(net::Loop& loop, Options options, Events events);

  void begin() { decide(membership::Begin{}); }
  void joined(int rank, uint32_t incarnation, pid_t pid) { decide(membership::Joined{rank, incarnation, pid}); }
  void exited(int rank, uint32_t incarnation, const std::string& why) {
    decide(membership::Exited{rank, incarnation, why});
  }
  // Kills these ranks where they live and starts them anew.
  void replace(std::vector<int> ranks) { decide(membership::Replace{std::move(ranks)}); }
  // The same for somebody who waits for it: `restarted` is called exactly once.
  void restart(const std::set<int>& ranks, Restarted restarted);
  void stop() { decide(membership::Stop{}); }

  int size() const { return static_cast<int>(state_.members.size()); }
  bool has(int rank) const { return rank >= 0 && rank < size(); }
  // REQUIRES: has(rank), here and below.
  const membership::Member& at(int rank) const { return state_.members.at(static_cast<size_t>(rank)); }
  bool is_ready(int rank) const { return at(rank).status == membership::Status::ready; }
  const wire::json& environment(int rank) const { return options_.environments.at(static_cast<size_t>(rank)); }
  // Of processes that start from now on, on every rank.
  void extend_environments(const wire::json& variables) {
    for (wire::json& environment : options_.environments) environment.update(variables);
  }
  uint32_t epoch() const { return state_.epoch; }
  membership::Phase phase() const { return state_.phase; }

 private:
  struct Restart {
    std::set<int> ranks;
    Restarted restarted;
  };

  void decide(const membership::Event& event);
  void decide_one(const membership::Event& event);
  void act(const membership::Spawn& spawn);
  void act(const membership::Kill& kill);
  void act(const membership::AnnounceReady& ready);
  void act(const membership::AnnounceLost& lost);
  void act(const membership::AnnounceStartFailed& failed);
  void act(const membership::AnnounceStopped&);
  void act(const membership::Refuse& refuse);
  void send_kill(const membership::Kill& kill, const std::string& why);
  void answer_restarts();

  net::Loop& loop_;
  Options options_;
  const Events events_;
  membership::Options deadlines_;
  membership::State state_;
  std::deque<membership::Event> waiting_;  // the first is being decided
  net::Loop::Handle deadline_;

  std::vector<Restart> restarts_;
  std::string refusal_;  // of the last request that was refused
  int rebuilds_ = 0;     // how often all ranks were restarted together

  std::vector<membership::Kill> stop_kills_;
  net::Loop::Handle stop_patience_;
};

}  // namespace ddip::coordinator
