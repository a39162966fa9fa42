#include "ddip/schedule/check_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "ddip/base/error.h"
#include "ddip/schedule/segments.h"
#include "ddip/schedule/weights.h"

namespace ddip::schedule {
namespace {

enum class Progress : uint8_t { waiting, forwarded, backwarded, finished };

struct Weights {
  int64_t version = 0;
  int staleness = 0;

  friend bool operator==(const Weights&, const Weights&) = default;
};

struct StageState {
  std::vector<Progress> progress;   // by micro-batch
  std::map<int64_t, Weights> read;  // by micro-batch between forward and backward
  std::map<int64_t, Weights> stashed;
  std::optional<std::pair<int64_t, Weights>> predicted;  // for the next forward
  int64_t newest = 0;                                    // steps done
  int64_t finished = 0;                                  // micro-batches
};

struct ChannelState {
  std::set<int64_t> arrived;  // received and not yet used
  std::vector<int64_t> sent;
  size_t retired = 0;
};

class ListChecker {
 public:
  ListChecker(const Plan& plan, size_t rank)
      : plan_(plan),
        request_(plan.request),
        rank_(rank),
        split_(splits_backward(request_.schedule)),
        ends_(step_ends(request_)),
        stages_(static_cast<size_t>(request_.stages)),
        channels_(request_.edges.size() * 2) {
    for (size_t stage = 0; stage < stages_.size(); ++stage)
      if (mine(static_cast<int>(stage)))
        stages_[stage].progress.assign(static_cast<size_t>(request_.total()), Progress::waiting);
    for (const Segment& segment : segments(request_))
      if (segment.drains) drains_.push_back(segment.end - 1);
  }

  void run() {
    for (at_ = 0; at_ < plan_.ranks[rank_].size(); ++at_) visit(plan_.ranks[rank_][at_]);
    if (drained_ < drains_.size())
      throw ConfigError(
          fmt::format("rank {}: the list ends without the drain after micro-batch {}", rank_, drains_[drained_]));
  }

 private:
  template <class... Args>
  void require(bool right, fmt::format_string<Args...> text, Args&&... args) const {
    if (!right) throw ConfigError(place(plan_, rank_, at_) + ": " + fmt::format(text, std::forward<Args>(args)...));
  }

  bool mine(int stage) const { return request_.rank_of_stage[static_cast<size_t>(stage)] == static_cast<int>(rank_); }

  void visit(const Action& action) {
    require(action.micro_batch >= 0 && action.micro_batch < request_.total(), "there are {} micro-batches",
            request_.total());
    if (action.kind == Kind::drain) return drain(action);
    require(drained_ < drains_.size(), "it comes after the last drain");
    require(action.stage >= 0 && action.stage < request_.stages && mine(action.stage),
            "this rank does not hold stage {}", action.stage);
    StageState& stage = stages_[static_cast<size_t>(action.stage)];
    // Between a prediction and its forward nothing of the stage may compute: it would write the same weights.
    require(!stage.predicted || !computes(action.kind), "the prediction before it is not used");
    switch (action.kind) {
      case Kind::receive: return receive(action);
      case Kind::send: return send(action);
      case Kind::retire: return retire(action);
      case Kind::forward: return forward(action, stage);
      case Kind::backward: return backward(action, stage);
      case Kind::weight_gradient: return weight_gradient(action, stage);
      case Kind::step: return step(action, stage);
      case Kind::stash: return stash(action, stage);
      case Kind::predict: return predict(action, stage);
      case Kind::drain: break;
    }
  }

  // Other than the forward, which uses the prediction.
  static bool computes(Kind kind) {
    return kind == Kind::backward || kind == Kind::weight_gradient || kind == Kind::step || kind == Kind::predict;
  }

  Progress& progress(const Action& action) {
    return stages_[static_cast<size_t>(action.stage)].progress[static_cast<size_t>(action.micro_batch)];
  }

  // The channel of a message, if this stage may use it so.
  ChannelState& channel(const Action& action, bool sends) {
    require(action.edge >= 0 && static_cast<size_t>(action.edge) < request_.edges.size(), "there are {} edges",
            request_.edges.size());
    require(action.direction != Direction::none, "a message is an activation or a gradient");
    const auto& [from, to] = request_.edges[static_cast<size_t>(action.edge)];
    const bool gradient = action.direction == Direction::gradient;
    const int here = sends != gradient ? from : to;
    require(here == action.stage, "on edge {} -> {} stage {} does that", from, to, here);
    require(request_.crosses(action.edge), "stages {} and {} are on this rank: no message is needed", from, to);
    return channels_[channel_of(action.edge, gradient)];
  }

  void receive(const Action& action) {
    ChannelState& from = channel(action, false);
    require(progress(action) < (action.direction == Direction::activation ? Progress::forwarded : Progress::backwarded),
            "it has been used before it comes");
    require(from.arrived.insert(action.micro_batch).second, "it is received twice");
  }

  void send(const Action& action) {
    ChannelState& to = channel(action, true);
    const bool activation = action.direction == Direction::activation;
    require(progress(action) >= (activation ? Progress::forwarded : Progress::backwarded), "its {} has not run yet",
            activation ? "forward" : "backward");
    require(std::find(to.sent.begin() + static_cast<ptrdiff_t>(to.retired), to.sent.end(), action.micro_batch) ==
                to.sent.end(),
            "it is sent twice");
    const auto room =
        static_cast<size_t>(plan_.capacity[channel_of(action.edge, action.direction == Direction::gradient)]);
    require(to.sent.size() - to.retired < std::max<size_t>(1, room),
            "its channel has room for {}, and {} are not retired", room, to.sent.size() - to.retired);
    to.sent.push_back(action.micro_batch);
  }

  void retire(const Action& action) {
    ChannelState& to = channel(action, true);
    require(to.retired < to.sent.size(), "nothing that was sent is left to retire");
    require(to.sent[to.retired] == action.micro_batch, "micro-batch {} was sent earlier and is not retired",
            to.sent[to.retired]);
    ++to.retired;
  }

  // Everything that this computation needs of other stages is there; received messages are used up.
  void take_inputs(const Action& action, bool forward) {
    for (size_t edge = 0; edge < request_.edges.size(); ++edge) {
      const auto& [from, to] = request_.edges[edge];
      if ((forward ? to : from) != action.stage) continue;
      const int other = forward ? from : to;
      const char* what = forward ? "activation" : "gradient";
      if (request_.crosses(static_cast<int>(edge))) {
        require(channels_[channel_of(static_cast<int>(edge), !forward)].arrived.erase(action.micro_batch) == 1,
                "its {} from stage {} was not received", what, other);
      } else {
        const Progress made = stages_[static_cast<size_t>(other)].progress[static_cast<size_t>(action.micro_batch)];
        require(made >= (forward ? Progress::forwarded : Progress::backwarded), "stage {} has not made its {} yet",
                other, what);
      }
    }
  }

  void forward(const Action& action, StageState& stage) {
    require(progress(action) == Progress::waiting, "its forward runs twice");
    take_inputs(action, true);
    const int64_t expected =
        reads_one_step_behind(request_.schedule) ? version_read_behind(ends_, action.micro_batch) : stage.newest;
    require(action.version == expected, "it must read version {}, the stage is at {}", expected, stage.newest);
    require(action.version <= stage.newest, "there is no such version yet, the stage is at {}", stage.newest);
    require(action.staleness == 0 || !is_synchronous(request_.schedule), "{} never reads stale weights",
            request_.schedule);
    require(request_.max_staleness < 0 || action.staleness <= most_stale(), "at most {} steps are allowed",
            most_stale());
    const Weights weights{action.version, action.staleness};
    const bool stale = action.staleness > 0;
    const bool perturbed = request_.needs.perturbs;
    if ((request_.needs.predicts && stale) || perturbed)
      require(stage.predicted == std::pair(action.micro_batch, weights), "its weights were not predicted");
    else
      require(!stage.predicted, "a prediction for another forward comes right before it");
    stage.predicted.reset();
    if ((request_.needs.stashes && stale) || perturbed) {
      const auto kept = stage.stashed.find(action.micro_batch);
      require(kept != stage.stashed.end() && kept->second == weights, "its weights were not stashed");
    }
    stage.read[action.micro_batch] = weights;
    progress(action) = Progress::forwarded;
  }

  // max_staleness counts micro-batches; a step has `accumulate` of them.
  int most_stale() const { return (request_.max_staleness + request_.accumulate - 1) / request_.accumulate; }

  void backward(const Action& action, StageState& stage) {
    require(progress(action) != Progress::waiting, "its forward has not run yet");
    require(progress(action) == Progress::forwarded, "its backward runs twice");
    take_inputs(action, false);
    check_staleness(action, stage);
    progress(action) = Progress::backwarded;
    if (!split_) finish(action, stage);
  }

  void weight_gradient(const Action& action, StageState& stage) {
    require(split_, "{} does not split the backward", request_.schedule);
    require(progress(action) >= Progress::backwarded, "its backward has not run yet");
    require(progress(action) == Progress::backwarded, "its weight gradient runs twice");
    check_staleness(action, stage);
    finish(action, stage);
  }

  void check_staleness(const Action& action, const StageState& stage) {
    const Weights& read = stage.read.at(action.micro_batch);
    require(action.version == stage.newest, "the stage is at version {}", stage.newest);
    require(action.staleness == read.staleness && action.version - read.version == read.staleness,
            "its forward read version {} and counted on {} steps until now, it is {}", read.version, read.staleness,
            stage.newest - read.version);
  }

  void finish(const Action& action, StageState& stage) {
    const auto steps = static_cast<size_t>(stage.newest);
    require(steps < ends_.size() && action.micro_batch < ends_[steps],
            "the step that ends with micro-batch {} has to come before", steps < ends_.size() ? ends_[steps] - 1 : -1);
    progress(action) = Progress::finished;
    stage.read.erase(action.micro_batch);
    stage.stashed.erase(action.micro_batch);
    ++stage.finished;
  }

  void step(const Action& action, StageState& stage) {
    const auto steps = static_cast<size_t>(stage.newest);
    require(steps < ends_.size(), "the last step has been done");
    require(action.version == stage.newest + 1, "it makes version {}", stage.newest + 1);
    require(action.micro_batch == ends_[steps] - 1, "this step ends with micro-batch {}", ends_[steps] - 1);
    // None behind its end is finished (finish), so the number says that all of them are.
    require(stage.finished == ends_[steps], "{} of the {} micro-batches until its end have their gradients",
            stage.finished, ends_[steps]);
    ++stage.newest;
  }

  void stash(const Action& action, StageState& stage) {
    const bool perturbed = request_.needs.perturbs;
    require(request_.needs.stashes || perturbed, "this plan needs no stash");
    require(progress(action) == Progress::waiting, "its forward has run already");
    require(action.version == stage.newest, "version {} is newest now and can be kept", stage.newest);
    require(action.staleness > 0 || perturbed, "weights that do not change need no stash");
    require(stage.stashed.emplace(action.micro_batch, Weights{action.version, action.staleness}).second,
            "it is stashed twice");
  }

  void predict(const Action& action, StageState& stage) {
    const bool perturbed = request_.needs.perturbs;
    require(request_.needs.predicts || perturbed, "this plan needs no prediction");
    require(action.staleness > 0 || perturbed, "there is nothing to predict");
    stage.predicted = {action.micro_batch, {action.version, action.staleness}};
  }

  void drain(const Action& action) {
    require(drained_ < drains_.size(), "there are {} drains", drains_.size());
    require(action.micro_batch == drains_[drained_], "this drain comes after micro-batch {}", drains_[drained_]);
    for (size_t index = 0; index < stages_.size(); ++index) {
      const StageState& stage = stages_[index];
      if (stage.progress.empty()) continue;
      require(stage.finished == action.micro_batch + 1, "stage {} has done {} of {} micro-batches", index,
              stage.finished, action.micro_batch + 1);
      require(stage.newest > 0 && ends_[static_cast<size_t>(stage.newest) - 1] == action.micro_batch + 1,
              "stage {} has not stepped", index);
      require(stage.read.empty() && !stage.predicted, "stage {} has something under way", index);
    }
    for (size_t index = 0; index < channels_.size(); ++index) check_drained(index, action.micro_batch);
    ++drained_;
  }

  void check_drained(size_t index, int64_t last) const {
    const ChannelState& channel = channels_[index];
    const auto& [from, to] = request_.edges[index / 2];
    const char* what = index % 2 == 0 ? "activation" : "gradient";
    require(channel.arrived.empty(), "an {} on edge {} -> {} was received and not used", what, from, to);
    require(channel.retired == channel.sent.size(), "the {} of micro-batch {} on edge {} -> {} is not retired", what,
            channel.retired < channel.sent.size() ? channel.sent[channel.retired] : -1, from, to);
    const bool sends = request_.crosses(static_cast<int>(index / 2)) && mine(index % 2 == 0 ? from : to);
    require(!sends || channel.sent.size() == static_cast<size_t>(last + 1),
            "{} of {} messages ({}) were sent on edge {} -> {}", channel.sent.size(), last + 1, what, from, to);
  }

  const Plan& plan_;
  const Request& request_;
  const size_t rank_;
  const bool split_;
  const std::vector<int64_t> ends_;
  std::vector<int64_t> drains_;
  size_t drained_ = 0;
  size_t at_ = 0;
  std::vector<StageState> stages_;
  std::vector<ChannelState> channels_;
};

}  // namespace

std::string place(const Plan& plan, size_t rank, size_t index) {
  return fmt::format("rank {}, action {} ({})", rank, index, to_text(plan.ranks[rank][index]));
}

void check_list(const Plan& plan, size_t rank) { ListChecker(plan, rank).run(); }

}  // namespace ddip::schedule
