// Gap-aware: the further the weights have moved since a gradient's own, the less of it is taken, element by element:
// g / π, π = 1 + |w − w_used| / C, where C is about how far one step moves this element.
#include <algorithm>
#include <cmath>

#include "ddip/staleness/fused.h"
#include "ddip/staleness/policies.h"

namespace ddip::staleness {
namespace {

class GapAware : public Policy {
 public:
  explicit GapAware(const GapOptions& options) : options_(options) {}

  Needs needs(const Optimizer& optimizer) const override {
    bool looks_back = measures_steps(optimizer.rule);
    for (const Group& group : optimizer.groups) looks_back |= group.momentum == 0 && group.weight_decay != 0;
    return {.stash = true, .own_gradient = true, .weights_before_step = looks_back, .step = true};
  }

  void after_backward(const Optimizer& optimizer, const at::Tensor& used, at::Tensor& gradient) override {
    if (!unit_.defined()) return;
    at::NoGradGuard no_grad;
    for (size_t index = 0; index < optimizer.groups.size(); ++index) {
      const Group& group = optimizer.groups[index];
      if (!measures_steps(optimizer.rule) && largest_rates_[index] == 0) continue;  // it has not moved yet
      at::Tensor part = slice_of(gradient, group);
      fused_gap(part, slice_of(optimizer.weights, group), slice_of(used, group), slice_of(unit_, group));
    }
  }

  void after_step(Optimizer& optimizer, const Step& step) override {
    at::NoGradGuard no_grad;
    if (!squares_.defined()) squares_ = at::zeros_like(optimizer.weights);
    if (!unit_.defined()) unit_ = at::zeros_like(optimizer.weights);
    largest_rates_.resize(optimizer.groups.size(), 0);
    for (size_t index = 0; index < optimizer.groups.size(); ++index) {
      const Group& group = optimizer.groups[index];
      largest_rates_[index] = std::max(largest_rates_[index], step.rates[index]);
      const double decay = is_adaptive(optimizer.rule) ? group.beta2 : options_.decay;
      const at::Tensor change = change_of(optimizer, group, step);
      at::Tensor squares = slice_of(squares_, group), unit = slice_of(unit_, group);
      squares.mul_(decay).addcmul_(change, change, 1.0 - decay);
      const double corrected = 1.0 - std::pow(decay, static_cast<double>(optimizer.steps));
      at::sqrt_out(unit, squares).mul_(std::sqrt(1.0 / corrected)).add_(options_.eps);
      if (!measures_steps(optimizer.rule)) unit.mul_(largest_rates_[index]);
    }
  }

  State state() const override {
    if (!squares_.defined()) return {};
    return {{"squares", squares_}, {"unit", unit_}, {"largest_rates", at::tensor(largest_rates_, at::kDouble)}};
  }
  void load_state(const State& state) override {
    squares_ = unit_ = at::Tensor();
    largest_rates_.clear();
    if (!state.contains("squares")) return;
    squares_ = state.at("squares").clone();
    unit_ = state.at("unit").clone();
    const at::Tensor rates = state.at("largest_rates").contiguous();
    largest_rates_.assign(rates.const_data_ptr<double>(), rates.const_data_ptr<double>() + rates.numel());
  }

 private:
  // Plain SGD's step is η times its velocity, which is at hand; the others' steps are measured.
  static bool measures_steps(Rule rule) { return rule != Rule::sgd; }

  static at::Tensor change_of(const Optimizer& optimizer, const Group& group, const Step& step) {
    if (measures_steps(optimizer.rule))
      return at::sub(slice_of(optimizer.weights, group), slice_of(step.weights_before, group));
    if (group.momentum != 0 && optimizer.velocity.defined()) return slice_of(optimizer.velocity, group);
    if (group.momentum != 0) return at::zeros_like(slice_of(optimizer.weights, group));  // no gradient came yet
    at::Tensor gradient = slice_of(step.gradient, group);
    if (group.maximize) gradient = gradient.neg();
    return group.weight_decay == 0 ? gradient : gradient.add(slice_of(step.weights_before, group), group.weight_decay);
  }

  const GapOptions options_;
  at::Tensor squares_;                 // ρ: of the steps, averaged
  at::Tensor unit_;                    // C
  std::vector<double> largest_rates_;  // that each group has stepped with
};

}  // namespace

std::unique_ptr<Policy> make_gap_aware(const GapOptions& options) { return std::make_unique<GapAware>(options); }

}  // namespace ddip::staleness
