#include "ddip/pipeline/stepping.h"

#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <map>
#include <set>
#include <typeinfo>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

namespace optim = torch::optim;
using staleness::Rule;

template <typename Options>
void take_adams(staleness::Group& group, const Options& options) {
  std::tie(group.beta1, group.beta2) = options.betas();
  group.eps = options.eps();
  group.weight_decay = options.weight_decay();
  group.amsgrad = options.amsgrad();
}

double rate_of(const optim::OptimizerParamGroup& group) {
  try {
    return group.options().get_lr();
  } catch (const c10::Error&) {
    throw ConfigError("the optimizer's options have no get_lr: a pipeline must know its rate");
  }
}

// Moves one moment of every parameter into flat memory. `moment`: where a parameter's state has it.
template <typename State>
at::Tensor gathered(optim::Optimizer& optimizer, const Weights& weights, at::Tensor& (State::*moment)()) {
  at::Tensor flat;
  std::vector<at::Tensor> places;
  for (size_t i = 0; i < weights.masters().size(); ++i) {
    auto found = optimizer.state().find(weights.masters()[i].unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    at::Tensor& own = (static_cast<State&>(*found->second).*moment)();
    if (!own.defined()) continue;
    if (!flat.defined()) {
      flat = at::zeros_like(weights.truth());
      places = weights.slices(flat);
    }
    places[i].copy_(own);
    own = places[i];
  }
  return flat;
}

}  // namespace

Rule rule_of(const optim::Optimizer& optimizer) {
  if (typeid(optimizer) == typeid(optim::SGD)) return Rule::sgd;
  if (typeid(optimizer) == typeid(optim::Adam)) return Rule::adam;
  if (typeid(optimizer) == typeid(optim::AdamW)) return Rule::adamw;
  return Rule::other;
}

staleness::Group group_of(Rule rule, const optim::OptimizerParamGroup& given, int64_t begin, int64_t end) {
  staleness::Group group{.begin = begin, .end = end, .rate = rate_of(given)};
  if (rule == Rule::sgd) {
    const auto& options = static_cast<const optim::SGDOptions&>(given.options());
    group.momentum = options.momentum();
    group.dampening = options.dampening();
    group.weight_decay = options.weight_decay();
    group.nesterov = options.nesterov();
  }
  if (rule == Rule::adam) take_adams(group, static_cast<const optim::AdamOptions&>(given.options()));
  if (rule == Rule::adamw) take_adams(group, static_cast<const optim::AdamWOptions&>(given.options()));
  if (group.amsgrad) throw ConfigError("amsgrad is not supported in a pipeline: its maximum cannot be predicted");
  return group;
}

Stepping::Stepping(std::shared_ptr<Weights> weights, const MakeOptimizer& make, RateFactor factor)
    : weights_(std::move(weights)), factor_(std::move(factor)), optimizer_(make(weights_->masters())) {
  if (!optimizer_) throw ConfigError("the function that makes a stage's optimizer gave none");
  if (dynamic_cast<const optim::LBFGS*>(optimizer_.get()))
    throw ConfigError("LBFGS asks for new gradients within a step; expected an optimizer that takes those it is given");
  refuse_other_parameters();
  rule_ = rule_of(*optimizer_);
  find_slices();
  wait_for_first_steps();
  for (const auto& group : optimizer_->param_groups()) first_rates_.push_back(group_of(rule_, group).rate);
  if (factor_) {
    for (size_t i = 0; i < first_rates_.size(); ++i)
      optimizer_->param_groups()[i].options().set_lr(first_rates_[i] * factor_(0));
  }
}

void Stepping::refuse_other_parameters() const {
  std::set<const at::TensorImpl*> taken;
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      taken.insert(parameter.unsafeGetTensorImpl());
      if (std::ranges::none_of(weights_->masters(), [&](const at::Tensor& ours) { return ours.is_same(parameter); }))
        throw ConfigError("the optimizer was given a stage's parameters and took others; use those it is called with");
    }
  }
  for (size_t i = 0; i < weights_->masters().size(); ++i) {
    if (!taken.contains(weights_->masters()[i].unsafeGetTensorImpl()))
      throw ConfigError(
          fmt::format("the optimizer leaves out {:?}; freeze what is not to be trained (requires_grad_(false))",
                      weights_->names()[i]));
  }
}

void Stepping::find_slices() {
  std::map<const at::TensorImpl*, size_t> home;
  const auto& groups = optimizer_->param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& parameter : groups[group].params()) home[parameter.unsafeGetTensorImpl()] = group;
  }
  for (size_t i = 0; i < weights_->masters().size(); ++i) {
    const at::Tensor& master = weights_->masters()[i];
    auto found = home.find(master.unsafeGetTensorImpl());
    int64_t begin = weights_->begins()[i], end = begin + master.numel();
    if (!slices_.empty() && slices_.back().group == found->second)
      slices_.back().end = end;  // over the padding between them, which is zero and stays so
    else
      slices_.push_back({found->second, begin, end});
  }
}

Versions::Asks Stepping::asks() {
  return {.optimizer = [this] { return state(); },
          .rates = [this](int steps) { return rates(steps); },
          .step = [this](const std::vector<double>& rates) { step(rates); },
          .stepped =
              [this] {
                if (on_stepped) on_stepped();
              }};
}

staleness::Optimizer Stepping::state() const {
  staleness::Optimizer now{
      .rule = rule_, .steps = steps_, .weights = weights_->truth(), .velocity = velocity_, .second = second_};
  for (const auto& [group, begin, end] : slices_)
    now.groups.push_back(group_of(rule_, optimizer_->param_groups()[group], begin, end));
  if (steps_ > 0) {
    for (size_t i : waiting_)
      now.unstepped.emplace_back(weights_->begins()[i], weights_->begins()[i] + weights_->masters()[i].numel());
  }
  return now;
}

std::vector<std::vector<double>> Stepping::rates(int steps) const {
  std::vector<std::vector<double>> found;
  for (const auto& [group, begin, end] : slices_) {
    double now = rate_of(optimizer_->param_groups()[group]);
    auto& ahead = found.emplace_back(static_cast<size_t>(steps), now);
    if (!factor_) continue;
    const double changed = changed_by_hand(group, now);
    for (int step = 1; step < steps; ++step)
      ahead[static_cast<size_t>(step)] = first_rates_[group] * factor_(steps_ + step) * changed;
  }
  return found;
}

void Stepping::step(const std::vector<double>& rates) {
  auto& groups = optimizer_->param_groups();
  last_rates_.clear();
  for (const auto& group : groups) last_rates_.push_back(rate_of(group));
  const std::vector<double> next = next_rates();  // now: if the factor throws, nothing has been stepped
  if (on_step) on_step();
  for (size_t i = 0; i < slices_.size(); ++i) groups[slices_[i].group].options().set_lr(rates[i]);
  const std::vector<size_t> unreached = weights_->unreached();
  for (size_t i : unreached) weights_->masters()[i].mutable_grad().reset();
  auto put_back = [&] {
    for (size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(last_rates_[i]);
    for (size_t i : unreached) weights_->masters()[i].mutable_grad() = weights_->gradients().places()[i];
  };
  try {
    optimizer_->step();
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  ++steps_;
  const size_t waited = std::erase_if(waiting_, [&](size_t i) { return !std::ranges::binary_search(unreached, i); });
  if (waited > 0) moments_are_known_ = false;
  gather_moments();
  for (size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(next[i]);
}

std::vector<double> Stepping::next_rates() const {
  std::vector<double> found = last_rates_;
  for (size_t i = 0; factor_ && i < found.size(); ++i)
    found[i] = first_rates_[i] * factor_(steps_ + 1) * changed_by_hand(i, found[i]);
  return found;
}

double Stepping::changed_by_hand(size_t group, double now) const {
  const double planned = first_rates_[group] * factor_(steps_);
  if (planned != 0) return planned == now ? 1 : now / planned;
  // A warm-up's first step: what was set is compared with the rate that the optimizer was given.
  return now == 0 || first_rates_[group] == 0 ? 1 : now / first_rates_[group];
}

void Stepping::gather_moments() {
  // A parameter's first step makes them; the optimizer goes on changing them where they are then.
  if (velocity_.defined() && moments_are_known_) return;
  moments_are_known_ = true;
  at::NoGradGuard quiet;
  if (rule_ == Rule::sgd)
    velocity_ = gathered<optim::SGDParamState>(*optimizer_, *weights_, &optim::SGDParamState::momentum_buffer);
  if (rule_ == Rule::adam) {
    velocity_ = gathered<optim::AdamParamState>(*optimizer_, *weights_, &optim::AdamParamState::exp_avg);
    second_ = gathered<optim::AdamParamState>(*optimizer_, *weights_, &optim::AdamParamState::exp_avg_sq);
  }
  if (rule_ == Rule::adamw) {
    velocity_ = gathered<optim::AdamWParamState>(*optimizer_, *weights_, &optim::AdamWParamState::exp_avg);
    second_ = gathered<optim::AdamWParamState>(*optimizer_, *weights_, &optim::AdamWParamState::exp_avg_sq);
  }
}

void Stepping::restore(int64_t steps, std::vector<double> first_rates) {
  steps_ = steps;
  first_rates_ = std::move(first_rates);
  velocity_ = second_ = at::Tensor();
  wait_for_first_steps();
  gather_moments();
}

void Stepping::wait_for_first_steps() {
  waiting_.clear();
  moments_are_known_ = false;
  for (size_t i = 0; i < weights_->masters().size(); ++i) {
    if (!optimizer_->state().count(weights_->masters()[i].unsafeGetTensorImpl())) waiting_.insert(i);
  }
}

std::vector<std::vector<double>> Stepping::by_group(const std::vector<std::vector<double>>& of_slices) const {
  std::map<size_t, std::vector<double>> found;
  for (size_t i = 0; i < slices_.size(); ++i) found.try_emplace(slices_[i].group, of_slices[i]);
  std::vector<std::vector<double>> groups;
  for (auto& [group, rates] : found) groups.push_back(std::move(rates));
  return groups;
}

}  // namespace ddip::pipeline
