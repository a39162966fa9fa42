#include "ddip/schedule/orders/merge.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>

#include "ddip/base/check.h"

namespace ddip::schedule {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Merger {
 public:
  Merger(const Request& request, const std::vector<Order>& stages)
      : request_(request),
        stages_(stages),
        next_(stages.size(), 0),
        free_(static_cast<size_t>(request.ranks()), 0),
        forward_end_(stages.size()),
        backward_end_(stages.size()) {}

  std::vector<Order> run() {
    std::vector<Order> ranks(free_.size());
    while (const auto stage = choose()) {
      const Work& work = stages_[*stage][next_[*stage]++];
      const size_t rank = rank_of(*stage);
      const double end = std::max(free_[rank], ready(*stage, work)) + cost(work);
      free_[rank] = end;
      if (work.kind == Kind::forward) forward_end_[*stage][work.micro_batch] = end;
      if (work.kind == Kind::backward) backward_end_[*stage][work.micro_batch] = end;
      ranks[rank].push_back(work);
    }
    for (size_t stage = 0; stage < stages_.size(); ++stage)
      DDIP_CHECK(next_[stage] == stages_[stage].size(), "the orders of the stages wait for one another");
    return ranks;
  }

 private:
  using Ends = std::unordered_map<int64_t, double>;

  size_t rank_of(size_t stage) const { return static_cast<size_t>(request_.rank_of_stage[stage]); }

  double cost(const Work& work) const {
    const StageCost cost = request_.costs.stage(work.stage);
    if (work.kind == Kind::forward) return cost.forward;
    if (work.kind == Kind::step) return cost.step;
    if (work.kind == Kind::weight_gradient) return cost.weight_gradient;
    return cost.backward + (splits_backward(request_.schedule) ? 0 : cost.weight_gradient);
  }

  // When everything that this work needs of other stages is there.
  double ready(size_t stage, const Work& work) const {
    const bool forward = work.kind == Kind::forward;
    if (!forward && work.kind != Kind::backward) return 0;
    double time = 0;
    for (size_t edge = 0; edge < request_.edges.size(); ++edge) {
      const auto& [from, to] = request_.edges[edge];
      if (static_cast<size_t>(forward ? to : from) != stage) continue;
      const Ends& ends = forward ? forward_end_[static_cast<size_t>(from)] : backward_end_[static_cast<size_t>(to)];
      const auto found = ends.find(work.micro_batch);
      if (found == ends.end()) return kNever;
      time = std::max(time, found->second + request_.message_time(static_cast<int>(edge)));
    }
    return time;
  }

  // The stage whose next work can begin first of all. Time never goes back, so nothing that is decided later could
  // have come before it.
  std::optional<size_t> choose() const {
    std::optional<size_t> best;
    double best_start = kNever;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (next_[stage] == stages_[stage].size()) continue;
      const Work& work = stages_[stage][next_[stage]];
      const double start = std::max(free_[rank_of(stage)], ready(stage, work));
      if (start == kNever || start > best_start) continue;
      if (start == best_start && !goes_first(work, stages_[*best][next_[*best]])) continue;
      best = stage;
      best_start = start;
    }
    return best;
  }

  // Of two works that could begin at the same time.
  static bool goes_first(const Work& work, const Work& other) {
    const bool forward = work.kind == Kind::forward, other_forward = other.kind == Kind::forward;
    if (forward != other_forward) return !forward;
    if (work.micro_batch != other.micro_batch) return work.micro_batch < other.micro_batch;
    return work.stage < other.stage;
  }

  const Request& request_;
  const std::vector<Order>& stages_;
  std::vector<size_t> next_;
  std::vector<double> free_;
  std::vector<Ends> forward_end_, backward_end_;
};

}  // namespace

std::vector<Order> merge(const Request& request, const std::vector<Order>& stages) {
  if (request.ranks() == request.stages) {
    std::vector<Order> ranks(stages.size());
    for (size_t stage = 0; stage < stages.size(); ++stage)
      ranks[static_cast<size_t>(request.rank_of_stage[stage])] = stages[stage];
    return ranks;
  }
  return Merger(request, stages).run();
}

}  // namespace ddip::schedule
