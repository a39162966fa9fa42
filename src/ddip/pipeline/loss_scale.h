// By what a loss is multiplied before its backward, so that small gradients do not vanish in half precision. It is
// divided out of a step's gradient again. A step whose gradients are not finite is left out, and the scale was too
// large: it is halved; after `interval` steps in a row that were finite it is doubled. So does torch.amp.GradScaler.
//
// Where stages do not wait for each other, what became of a step is known some steps later. Of the steps that were
// under way with a scale that was found too large meanwhile nothing more is learned.
//
// What is multiplied is the sum over a micro-batch's samples, so that 1024 on 64 samples is what 65536, with which
// torch begins, is on their mean. It is a power of two, so that nothing is rounded by it, and has its place on the rank
// of the last stage; the others get it with the gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ddip::pipeline {

class LossScale {
 public:
  static constexpr double kLeast = 1.0 / 16777216, kMost = 16777216;  // 2^-24, 2^24

  struct Options {
    double initial = 1024;
    int64_t interval = 2000;  // 0: it stays as it is
    friend bool operator==(const Options&, const Options&) = default;
  };
  // What a later run needs.
  struct State {
    double scale = 0;
    int64_t finite = 0;             // steps in a row, with this scale
    std::vector<double> under_way;  // of the last steps, whose ends are not known: theirs
    friend bool operator==(const State&, const State&) = default;
  };

  // ConfigError if they are no such numbers.
  explicit LossScale(const Options& options);

  // Of the step that gradients are summed for.
  double now() const { return state_.scale; }
  // That step is done. `finite`: whether the gradients of all stages were, of the oldest step that is under way;
  // nothing is known of it yet.
  void stepped(std::optional<bool> finite);
  // What became of the steps that are under way will never be known.
  void forget() { state_.under_way.clear(); }

  const State& state() const { return state_; }
  // Of a run that was perhaps scaled by other rules: a scale that is fixed here stays. Of its steps under way at most
  // `delay` are known here later; how many.
  int64_t restore(State state, int delay);
  // ConfigError if it can be nobody's.
  static void require(const State& state);

 private:
  const Options options_;
  State state_;
};

}  // namespace ddip::pipeline
