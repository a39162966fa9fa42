// What has been done, as it was done: for the timeline, the ledger and the report. A long run has millions of actions,
// so that each takes the bytes that it needs: a message its times, a forward also what it read.
#pragma once

#include <map>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ddip/pipeline/lists.h"
#include "ddip/pipeline/losses.h"
#include "ddip/pipeline/versions.h"
#include "ddip/schedule/action.h"

namespace ddip::pipeline {

// One action, with what it really used: by the stage and its optimizer, not by the plan.
struct Done {
  schedule::Action action;
  double begin = 0, end = 0;  // seconds since the run's beginning
  double count = 0;           // forward: samples; backward: what the loss counted; step: the sum over its micro-batches
  Used used;                  // forward
  ReadBack read;              // backward
  double loss_scale = 1;      // backward
  bool split = false;         // backward: the weights' gradients come later; weight gradient: they came now
  Versions::Stepped stepped;  // step
};

class Record {
 public:
  Record() = default;
  // Of a run of these actions, of which none is done. They must outlive it. Fewer than 2^31 steps and micro-batches.
  explicit Record(std::span<const schedule::Action> actions);

  double start = 0;  // when the run began, in seconds of a clock that the processes of one host share
  Losses losses;     // last stage
  uint64_t bytes_sent = 0;
  std::map<int, std::string>
      whole_backwards;      // stages whose planned split was not possible, and the node that forbids it
  std::set<int> unreached;  // stages with weights that no backward of the run came to

  // The next action.
  void add(const Done& done);
  // A step that came later than its action. `place`: of that.
  void step_later(size_t place, const Versions::Stepped& stepped);

  size_t size() const { return times_.size(); }
  Done at(size_t place) const;
  // From the first one on, each put together when it is looked at.
  auto actions() const {
    return std::views::iota(size_t{0}, size()) | std::views::transform([this](size_t place) { return at(place); });
  }
  size_t bytes() const;  // of memory, about

 private:
  struct Times {
    double begin, end;
  };
  struct Rates {
    int32_t list = Lists<double>::kNone;
    uint16_t groups = 0;
  };
  struct Forward {
    int64_t label;
    uint32_t place;
    int32_t samples;
    int32_t version;
    int32_t rates, pending;  // lists
    uint16_t groups;
    bool predicted;
  };
  struct Backward {  // weight gradients, too
    double count;
    uint32_t place;
    int32_t version;
    int32_t rates;  // a list
    uint16_t groups;
    uint8_t from : 4, split : 4;
    int8_t loss_scale;  // the power of two
  };
  struct Step {
    double count, norm, scale;
    uint32_t place;
    int32_t micro_batches, rates;  // lists
    bool left_out;
  };
  // Micro-batches `first`, `first` + 1, …
  struct Run {
    int64_t first, count;
    friend bool operator==(const Run&, const Run&) = default;
  };

  Rates add_rates(const std::vector<std::vector<double>>& by_group);
  std::vector<std::vector<double>> rates_of(const Rates& rates) const;
  int32_t add_micro_batches(const std::vector<int64_t>& micro_batches);
  std::vector<int64_t> micro_batches_of(int32_t list) const;

  std::span<const schedule::Action> actions_;
  std::vector<Times> times_;  // of each action
  // In the order of their places.
  std::vector<Forward> forwards_;
  std::vector<Backward> backwards_;
  std::vector<Step> steps_;
  Lists<double> rates_;
  Lists<Run> micro_batches_;
};

}  // namespace ddip::pipeline
