// Coefficients by hand. What they do to tensors is compared with torch.optim in tests/test_staleness.py.
#include <gtest/gtest.h>

#include "ddip/base/error.h"
#include "ddip/staleness/adaptive.h"
#include "ddip/staleness/make_policy.h"
#include "ddip/staleness/matrix.h"

namespace ddip::staleness {
namespace {

Optimizer with(Group group, Rule rule = Rule::sgd) {
  Optimizer optimizer{.rule = rule, .groups = {group}};
  optimizer.velocity = at::ones(1);
  return optimizer;
}

Moment at_rates(std::vector<double> rates) {
  Moment moment;
  moment.staleness = static_cast<int>(rates.size());
  moment.rates = {std::move(rates)};
  return moment;
}

TEST(Msnag, adds_up_rates_times_powers_of_momentum) {
  const Moment moment = at_rates({0.1, 0.2, 0.4});
  EXPECT_DOUBLE_EQ(momentum_coefficients(with({.momentum = 0.5}), moment, 0).velocity, -(0.05 + 0.05 + 0.05));
  EXPECT_DOUBLE_EQ(momentum_coefficients(with({.momentum = 0.5, .nesterov = true}), moment, 0).velocity, -0.075);
  EXPECT_DOUBLE_EQ(momentum_coefficients(with({.momentum = 0.5}, Rule::sutskever), moment, 0).velocity, -0.875);
}

TEST(Msnag, has_the_closed_form_at_a_constant_rate) {
  const double gamma = 0.9, rate = 0.3;
  const Moment moment = at_rates(std::vector<double>(7, rate));
  const double closed = gamma * (1 - std::pow(gamma, 7)) / (1 - gamma) * rate;
  EXPECT_NEAR(momentum_coefficients(with({.momentum = gamma}), moment, 0).velocity, -closed, 1e-15);
}

TEST(Aggmsnag, one_step_is_decay_momentum_and_what_is_there) {
  Moment moment = at_rates({0.1});
  moment.pending = at::ones(1);
  moment.pending_micro_batches = 1;
  moment.pending_samples = 1;
  const Coefficients one = step_coefficients(with({.momentum = 0.9, .weight_decay = 0.2}), moment, 0, true);
  EXPECT_DOUBLE_EQ(one.weights, 1 - 0.1 * 0.2);
  EXPECT_DOUBLE_EQ(one.velocity, -0.1 * 0.9);
  EXPECT_DOUBLE_EQ(one.pending, -0.1);
  EXPECT_EQ(step_coefficients(with({.momentum = 0.9}), moment, 0, false).pending, 0);
}

TEST(Aggmsnag, without_decay_the_weights_stay_exactly_one) {
  EXPECT_EQ(step_coefficients(with({.momentum = 0.9}), at_rates({0.1, 0.3, 0.7}), 0, true).weights, 1);
}

TEST(Pending, weighs_what_its_micro_batches_will_weigh_in_their_step) {
  Moment moment = at_rates({0.1});
  EXPECT_EQ(pending_weight({}, moment), 0);
  moment.pending = at::ones(1);
  moment.pending_micro_batches = 3;
  moment.pending_samples = 24;
  moment.accumulate = 4;
  EXPECT_DOUBLE_EQ(pending_weight({}, moment), 3.0 / 96);
  EXPECT_DOUBLE_EQ(pending_weight({.maximize = true}, moment), -3.0 / 96);
  moment.loss_scale = 8;
  EXPECT_DOUBLE_EQ(pending_weight({}, moment), 3.0 / 96 / 8);
}

TEST(Adaptive, factors_are_corrected_by_the_steps_to_come) {
  Optimizer adam = with({.beta1 = 0.5}, Rule::adam);
  adam.steps = 1;
  const auto steps = adaptive_steps(adam, at_rates({0.1, 0.1}), 0);
  EXPECT_DOUBLE_EQ(steps[0].moment, 0.1 / (1 - 0.25));
  EXPECT_DOUBLE_EQ(steps[1].moment, 0.1 / (1 - 0.125));
}

TEST(Rates, one_too_few_names_group_and_step) {
  Moment moment = at_rates({0.1});
  moment.staleness = 2;
  moment.micro_batch = 5;
  try {
    momentum_coefficients(with({.momentum = 0.9}), moment, 0);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "micro-batch 5, staleness 2: the rate of step 2 from now was expected for group 0");
  }
}

TEST(Names, parts_of_a_combination) {
  EXPECT_EQ(parts_of("spike+lwp"), (std::vector<std::string>{"spike", "lwp"}));
  EXPECT_THROW(parts_of("spike+"), ConfigError);
}

TEST(Matrix, every_cell_has_an_answer_and_every_refusal_a_reason) {
  for (const std::string& schedule : schedule_names())
    for (const std::string& policy : policy_names()) {
      const Verdict verdict = schedule_takes(schedule, policy);
      EXPECT_EQ(verdict.why.empty(), verdict.fit == Fit::valid) << schedule << " " << policy;
    }
}

}  // namespace
}  // namespace ddip::staleness
