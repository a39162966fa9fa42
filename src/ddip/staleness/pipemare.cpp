// PipeMare: the newest weights in the forward; a smaller rate while training begins, by the stage's mean staleness
// (T1); and in the backward the weights as they were at the forward, guessed from how they have moved lately (T2).
#include <algorithm>
#include <cmath>

#include "ddip/staleness/policies.h"

namespace ddip::staleness {
namespace {

class Pipemare : public Policy {
 public:
  explicit Pipemare(const PipemareOptions& options) : options_(options) {}
  Needs needs(const Optimizer& /*optimizer*/) const override {
    return {.backward_weights = true, .weights_before_step = true, .step = true};
  }

  bool before_backward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    if (!change_.defined()) return false;
    at::NoGradGuard no_grad;
    at::add_out(out, optimizer.weights, change_, -moment.mean_staleness);
    return true;
  }

  void before_step(const Optimizer& optimizer, Step& step) override {
    const double steps = static_cast<double>(optimizer.steps), until = static_cast<double>(options_.annealing_steps);
    const double power = options_.annealing_steps == 0 ? 0 : 1.0 - std::min(steps / until, 1.0);
    const double divisor = std::pow(std::max(1.0, step.mean_staleness), power);
    for (double& rate : step.rates) rate = rate / divisor;
  }

  void after_step(Optimizer& optimizer, const Step& step) override {
    if (step.mean_staleness == 0) return;
    at::NoGradGuard no_grad;
    if (!change_.defined()) change_ = at::zeros_like(optimizer.weights);
    const double kept = std::pow(options_.decay, 1.0 / step.mean_staleness);
    change_.mul_(kept).add_(at::sub(optimizer.weights, step.weights_before), 1.0 - kept);
  }

  State state() const override { return change_.defined() ? State{{"change", change_}} : State{}; }
  void load_state(const State& state) override {
    const auto found = state.find("change");
    change_ = found == state.end() ? at::Tensor() : found->second.clone();
  }

 private:
  const PipemareOptions options_;
  at::Tensor change_;  // δ: a step's change of the weights, averaged
};

}  // namespace

std::unique_ptr<Policy> make_pipemare(const PipemareOptions& options) { return std::make_unique<Pipemare>(options); }

}  // namespace ddip::staleness
