#include "ddip/staleness/adaptive.h"

#include <cmath>

#include "ddip/staleness/fused.h"

namespace ddip::staleness {
namespace {

// One group's part of everything, for the time of one prediction.
struct Part {
  const Optimizer& optimizer;
  const Group& group;
  std::vector<AdaptiveStep> steps;
  std::vector<double> rates;
  at::Tensor weights, first, second, pending;
  double pending_weight;  // s

  bool decouples() const {
    return optimizer.rule == Rule::adamw || (optimizer.rule == Rule::nadam && group.decoupled_weight_decay);
  }
  // Adam's L2 decay goes through the moments: the weights enter each of the n steps anew.
  bool decays_through_moments() const { return group.weight_decay != 0 && !decouples(); }
  double kept(size_t k) const { return decouples() ? 1.0 - rates[k] * group.weight_decay : 1.0; }
  // √û is √u times this, after k more steps that had no gradient.
  double root_scale(size_t k, bool decays) const {
    const double t = static_cast<double>(optimizer.steps), more = decays ? static_cast<double>(k) : 0;
    return std::sqrt(std::pow(group.beta2, more) / (1.0 - std::pow(group.beta2, t + more)));
  }
};

// All n steps in one: A and S by recurrence, then one pass over memory.
void write_at_once(const Part& part, bool accumulates, at::Tensor& out) {
  const Group& group = part.group;
  double weights = 1, moved = 0, power = 1;
  for (size_t k = 1; k <= part.steps.size(); ++k) {
    const double kept = part.kept(k - 1);
    weights = weights * kept;
    // φ is in the first moment already, with its first factor β₁.
    if (!accumulates || k > 1) power = power * group.beta1;
    moved = moved * kept + part.steps[k - 1].moment * power;
  }
  AdaptiveCoefficients coefficients{weights, -moved, part.root_scale(0, false), group.eps, 1, 0};
  if (accumulates) {
    coefficients.first = group.beta1;
    coefficients.pending = (1.0 - group.beta1) * part.pending_weight;
  }
  fused_adaptive(out, part.weights, part.first, part.second, part.pending, coefficients);
}

// The second moment decays, so that each step has its own denominator, or L2 decay makes λŵ each step's gradient.
void write_step_by_step(const Part& part, bool second_decays, at::Tensor& out) {
  const Group& group = part.group;
  const bool through_moments = part.decays_through_moments();
  AdaptiveSteps by{.steps = {},
                   .eps = group.eps,
                   .first = group.beta1,
                   .decay = (1.0 - group.beta1) * group.weight_decay,
                   .pending = (1.0 - group.beta1) * part.pending_weight,
                   .through_moments = through_moments,
                   .moves_by_gradient = through_moments && part.optimizer.rule == Rule::nadam};
  double power = 1;
  for (size_t k = 1; k <= part.steps.size(); ++k) {
    const AdaptiveStep& step = part.steps[k - 1];
    if (!through_moments) power = power * group.beta1;  // else the moments have it
    by.steps.push_back({.kept = part.kept(k - 1),
                        .root = part.root_scale(k, second_decays),
                        .moment = -(step.moment * power),
                        .gradient = -(group.weight_decay * step.gradient)});
  }
  fused_steps(out, part.weights, part.first, part.second, part.pending, by);
}

}  // namespace

std::vector<AdaptiveStep> adaptive_steps(const Optimizer& optimizer, const Moment& moment, size_t group) {
  const Group& of = optimizer.groups[group];
  const double t = static_cast<double>(optimizer.steps);
  auto mu = [&](double step) { return of.beta1 * (1.0 - 0.5 * std::pow(0.96, step * of.momentum_decay)); };
  double product = optimizer.mu_products.empty() ? 1 : optimizer.mu_products.at(group);
  std::vector<AdaptiveStep> steps;
  for (int k = 1; k <= moment.staleness; ++k) {
    const double rate = rate_of(moment, group, k), step = t + k;
    if (optimizer.rule != Rule::nadam) {
      steps.push_back({rate / (1.0 - std::pow(of.beta1, step)), 0});
      continue;
    }
    const double now = mu(step), next = mu(step + 1);
    product = product * now;
    steps.push_back({rate * next / (1.0 - product * next), rate * (1.0 - now) / (1.0 - product)});
  }
  return steps;
}

void write_adaptive(const Optimizer& optimizer, const Moment& moment, const AdaptiveOptions& options, at::Tensor& out) {
  at::NoGradGuard no_grad;
  const bool second_decays = options.second_decays && !options.with_pending;
  for (size_t index = 0; index < optimizer.groups.size(); ++index) {
    const Group& group = optimizer.groups[index];
    Part part{.optimizer = optimizer,
              .group = group,
              .steps = adaptive_steps(optimizer, moment, index),
              .rates = moment.rates[index],
              .weights = slice_of(optimizer.weights, group),
              .first = slice_of(optimizer.velocity, group),
              .second = slice_of(optimizer.second, group),
              .pending = options.with_pending ? slice_of(moment.pending, group) : at::Tensor(),
              .pending_weight = options.with_pending ? pending_weight(group, moment) : 0};
    at::Tensor to = slice_of(out, group);
    if (part.decays_through_moments() || second_decays)
      write_step_by_step(part, second_decays, to);
    else
      write_at_once(part, options.with_pending, to);
  }
  for (const auto& [begin, end] : optimizer.unstepped)
    out.narrow(0, begin, end - begin).copy_(optimizer.weights.narrow(0, begin, end - begin));
}

}  // namespace ddip::staleness
