#include "ddip/staleness/linear.h"

#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/staleness/fused.h"

namespace ddip::staleness {

double rate_of(const Moment& moment, size_t group, int k) {
  if (group >= moment.rates.size() || moment.rates[group].size() < static_cast<size_t>(k))
    throw ConfigError(
        fmt::format("micro-batch {}, staleness {}: the rate of step {} from now was expected for group {}",
                    moment.micro_batch, moment.staleness, k, group));
  return moment.rates[group][static_cast<size_t>(k) - 1];
}

double pending_weight(const Group& group, const Moment& moment) {
  if (!moment.pending.defined() || moment.pending_micro_batches == 0) return 0;
  const double whole = static_cast<double>(moment.accumulate) * moment.pending_samples;
  const double sign = group.maximize ? -1.0 : 1.0;
  const double weight = sign * static_cast<double>(moment.pending_micro_batches) / whole;
  return moment.loss_scale == 1 ? weight : weight / moment.loss_scale;
}

Coefficients momentum_coefficients(const Optimizer& optimizer, const Moment& moment, size_t group) {
  const Group& of = optimizer.groups[group];
  double power = 1, sum = 0;
  for (int k = 1; k <= moment.staleness; ++k) {
    power = power * of.momentum;
    const double reach = of.nesterov ? power * of.momentum : power;
    sum = sum + (optimizer.rule == Rule::sutskever ? reach : rate_of(moment, group, k) * reach);
  }
  return {.velocity = -sum};
}

Coefficients step_coefficients(const Optimizer& optimizer, const Moment& moment, size_t group, bool with_pending) {
  const Group& of = optimizer.groups[group];
  const bool has_velocity = optimizer.velocity.defined(), rate_inside = optimizer.rule == Rule::sutskever;
  const double pending = with_pending ? pending_weight(of, moment) : 0;
  // ŵ and v̂ as multiples of (w, v, φ): the three are stepped alike.
  double weights[3] = {1, 0, 0}, velocity[3] = {0, has_velocity ? 1.0 : 0.0, 0};
  for (int k = 1; k <= moment.staleness; ++k) {
    const double rate = rate_of(moment, group, k);
    const bool damps = of.momentum != 0 && (has_velocity || k > 1);
    const double kept = damps ? 1 - of.dampening : 1;
    for (int term = 0; term < 3; ++term) {
      double gradient = of.weight_decay * weights[term];
      if (k == 1 && term == 2) gradient = gradient + pending;
      velocity[term] = of.momentum * velocity[term] + (rate_inside ? rate * kept : kept) * gradient;
      double change = velocity[term];
      if (of.nesterov) change = (rate_inside ? rate * gradient : gradient) + of.momentum * velocity[term];
      weights[term] = weights[term] - (rate_inside ? change : rate * change);
    }
  }
  return {weights[0], weights[1], weights[2]};
}

bool write_linear(const Optimizer& optimizer, const at::Tensor& pending, const CoefficientsOf& of, at::Tensor& out) {
  at::NoGradGuard no_grad;
  std::vector<Coefficients> all;
  bool moves = false;
  for (size_t index = 0; index < optimizer.groups.size(); ++index) {
    const Coefficients& one = all.emplace_back(of(index));
    moves |= one.weights != 1 || (one.velocity != 0 && optimizer.velocity.defined()) ||
             (one.pending != 0 && pending.defined());
  }
  if (!moves) return false;
  for (size_t index = 0; index < optimizer.groups.size(); ++index) {
    const Group& group = optimizer.groups[index];
    at::Tensor part = slice_of(out, group);
    fused_linear(part, slice_of(optimizer.weights, group), slice_of(optimizer.velocity, group),
                 slice_of(pending, group), all[index]);
  }
  return true;
}

}  // namespace ddip::staleness
