#include "ddip/schedule/run.h"

#include <algorithm>
#include <optional>

namespace ddip::schedule {
namespace {

struct Channel {
  int receiver = 0;
  std::vector<double> sent, arrived, received;  // in their order
  size_t retired = 0;
};

class Runner {
 public:
  Runner(const Plan& plan, const Costs& costs, const std::vector<int>& capacity)
      : plan_(plan),
        costs_(costs),
        capacity_(capacity),
        split_(splits_backward(plan.request.schedule)),
        channels_(plan.request.edges.size() * 2),
        now_(plan.ranks.size(), 0) {
    result_.ranks.resize(plan.ranks.size());
    for (size_t edge = 0; edge < plan.request.edges.size(); ++edge) {
      const auto rank_of = [&](int stage) { return plan.request.rank_of_stage[static_cast<size_t>(stage)]; };
      channels_[edge * 2].receiver = rank_of(plan.request.edges[edge].to);
      channels_[edge * 2 + 1].receiver = rank_of(plan.request.edges[edge].from);
    }
  }

  Run run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < now_.size(); ++rank)
        while (advance(rank)) moved = true;
    }
    result_.finished = true;
    for (size_t rank = 0; rank < now_.size(); ++rank)
      result_.finished &= result_.ranks[rank].size() == plan_.ranks[rank].size();
    for (const Channel& channel : channels_) result_.most_frames.push_back(most_frames(channel));
    return std::move(result_);
  }

 private:
  const Action* head(size_t rank) const {
    const size_t at = result_.ranks[rank].size();
    return at < plan_.ranks[rank].size() ? &plan_.ranks[rank][at] : nullptr;
  }

  bool advance(size_t rank) {
    const Action* action = head(rank);
    if (action == nullptr) return false;
    if (action->kind == Kind::send) return send(rank, *action);
    std::optional<double> ready = now_[rank];
    if (action->kind == Kind::receive) ready = receive(rank, *action);
    if (action->kind == Kind::retire) ready = retire(rank, *action);
    if (!ready) return false;
    finish(rank, *ready, *ready + cost_of(*action, costs_, split_));
    return true;
  }

  void finish(size_t rank, double begin, double end) {
    result_.ranks[rank].push_back({begin, end});
    now_[rank] = end;
  }

  Channel& channel_at(const Action& action) {
    return channels_[channel_of(action.edge, action.direction == Direction::gradient)];
  }

  // A link carries one message at a time.
  bool send(size_t rank, const Action& action) {
    Channel& channel = channel_at(action);
    const size_t index = channel.sent.size();
    double begin = now_[rank];
    if (!capacity_.empty()) {
      const auto room =
          static_cast<size_t>(capacity_[channel_of(action.edge, action.direction == Direction::gradient)]);
      if (room == 0) return meet(rank, action, channel);
      if (index >= room) {
        if (channel.received.size() <= index - room) return false;
        begin = std::max(begin, channel.received[index - room]);
      }
    }
    const double link_free = channel.arrived.empty() ? 0 : channel.arrived.back();
    channel.sent.push_back(begin);
    channel.arrived.push_back(std::max(begin, link_free) + costs_.link(action.edge));
    finish(rank, begin, begin);
    return true;
  }

  // Without room in between the receiver must stand at its RECV.
  bool meet(size_t rank, const Action& action, Channel& channel) {
    const auto other = static_cast<size_t>(channel.receiver);
    const Action* waiting = head(other);
    if (waiting == nullptr || waiting->kind != Kind::receive || waiting->edge != action.edge ||
        waiting->direction != action.direction)
      return false;
    const double begin = std::max(now_[rank], now_[other]);
    const double end = begin + costs_.link(action.edge);
    channel.sent.push_back(begin);
    channel.arrived.push_back(end);
    channel.received.push_back(end);
    finish(rank, begin, end);
    finish(other, end, end);
    return true;
  }

  std::optional<double> receive(size_t rank, const Action& action) {
    Channel& channel = channel_at(action);
    if (channel.arrived.size() <= channel.received.size()) return std::nullopt;
    channel.received.push_back(std::max(now_[rank], channel.arrived[channel.received.size()]));
    return channel.received.back();
  }

  std::optional<double> retire(size_t rank, const Action& action) {
    if (capacity_.empty()) return now_[rank];
    Channel& channel = channel_at(action);
    if (channel.received.size() <= channel.retired) return std::nullopt;
    return std::max(now_[rank], channel.received[channel.retired++]);
  }

  static int most_frames(const Channel& channel) {
    size_t taken = 0, most = 0;
    for (size_t index = 0; index < channel.sent.size(); ++index) {
      while (taken < std::min(index, channel.received.size()) && channel.received[taken] <= channel.sent[index])
        ++taken;
      most = std::max(most, index + 1 - taken);
    }
    return static_cast<int>(most);
  }

  const Plan& plan_;
  const Costs& costs_;
  const std::vector<int>& capacity_;
  const bool split_;
  std::vector<Channel> channels_;
  std::vector<double> now_;
  Run result_;
};

}  // namespace

double cost_of(const Action& action, const Costs& costs, bool split) {
  switch (action.kind) {
    case Kind::forward: return costs.stage(action.stage).forward;
    case Kind::backward:
      return costs.stage(action.stage).backward + (split ? 0 : costs.stage(action.stage).weight_gradient);
    case Kind::weight_gradient: return costs.stage(action.stage).weight_gradient;
    case Kind::step: return costs.stage(action.stage).step;
    case Kind::predict: return costs.stage(action.stage).predict;
    default: return 0;
  }
}

Run run(const Plan& plan, const Costs& costs, const std::vector<int>& capacity) {
  return Runner(plan, costs, capacity).run();
}

}  // namespace ddip::schedule
