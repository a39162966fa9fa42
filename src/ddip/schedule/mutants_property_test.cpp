// One thing in a plan is changed, as a careless hand or a wrong generator might: the checker sees it, whatever it is.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>
#include <optional>

#include "ddip/schedule/checker.h"
#include "ddip/schedule/testing/random_request.h"

namespace ddip::schedule {
namespace {

struct Place {
  size_t rank = 0, index = 0;
};

// A random action that fits, or none.
std::optional<Place> some(const Plan& plan, const std::function<bool(const Action&)>& fits) {
  std::vector<Place> places;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (size_t index = 0; index < plan.ranks[rank].size(); ++index)
      if (fits(plan.ranks[rank][index])) places.push_back({rank, index});
  if (places.empty()) return std::nullopt;
  return places[static_cast<size_t>(between(0, static_cast<int>(places.size()) - 1))];
}

Action& at(Plan& plan, Place place) { return plan.ranks[place.rank][place.index]; }

void drop(Plan& plan, Place place) {
  auto& actions = plan.ranks[place.rank];
  actions.erase(actions.begin() + static_cast<ptrdiff_t>(place.index));
}

// Each changes the plan in its way, or says that there is nothing to change.
using Mutation = bool (*)(Plan&);

template <Kind kind>
bool drops(Plan& plan) {
  const auto place = some(plan, [](const Action& action) { return action.kind == kind; });
  if (place) drop(plan, *place);
  return place.has_value();
}

template <Kind kind>
bool doubles(Plan& plan) {
  const auto place = some(plan, [](const Action& action) { return action.kind == kind; });
  if (!place) return false;
  auto& actions = plan.ranks[place->rank];
  const Action copy = at(plan, *place);
  const size_t to = static_cast<size_t>(between(0, static_cast<int>(actions.size())));
  actions.insert(actions.begin() + static_cast<ptrdiff_t>(to), copy);
  return true;
}

bool has_version(const Action& action) { return action.version >= 0; }

bool shifts_a_version(Plan& plan) {
  const auto place = some(plan, has_version);
  if (place) at(plan, *place).version += *rc::gen::element(-1, 1);
  return place.has_value();
}

bool shifts_a_staleness(Plan& plan) {
  const auto place = some(plan, [](const Action& action) { return has_version(action) && action.kind != Kind::step; });
  if (place) at(plan, *place).staleness += *rc::gen::element(-1, 1);
  return place.has_value();
}

template <class Value>
bool swaps(Plan& plan, const std::function<bool(const Action&)>& fits, Value Action::* field) {
  const auto one = some(plan, fits);
  if (!one) return false;
  const Action first = at(plan, *one);
  const auto other = some(plan, [&](const Action& action) {
    return fits(action) && action.kind == first.kind && action.stage == first.stage && action.edge == first.edge &&
           action.direction == first.direction && action.*field != first.*field;
  });
  if (other) std::swap(at(plan, *one).*field, at(plan, *other).*field);
  return other.has_value();
}

bool swaps_versions(Plan& plan) {
  return swaps(plan, [](const Action& action) { return action.kind == Kind::forward; }, &Action::version);
}

bool swaps_sends(Plan& plan) {
  return swaps(plan, [](const Action& action) { return action.kind == Kind::send; }, &Action::micro_batch);
}

bool swaps_receives(Plan& plan) {
  return swaps(plan, [](const Action& action) { return action.kind == Kind::receive; }, &Action::micro_batch);
}

bool shrinks_a_buffer(Plan& plan) {
  std::vector<size_t> channels;
  for (size_t channel = 0; channel < plan.capacity.size(); ++channel)
    if (plan.capacity[channel] > 1) channels.push_back(channel);
  if (channels.empty()) return false;
  --plan.capacity[*rc::gen::elementOf(channels)];
  return true;
}

bool turns_a_message(Plan& plan) {
  const auto place = some(plan, [](const Action& action) { return action.direction != Direction::none; });
  if (!place) return false;
  Direction& direction = at(plan, *place).direction;
  direction = direction == Direction::activation ? Direction::gradient : Direction::activation;
  return true;
}

bool renumbers(Plan& plan) {
  const auto place = some(plan, [](const Action&) { return true; });
  at(plan, *place).micro_batch += *rc::gen::element(-1, 1);
  return true;
}

bool moves_to_another_stage(Plan& plan) {
  const auto place = some(plan, [](const Action& action) { return action.stage >= 0; });
  at(plan, *place).stage += *rc::gen::element(-1, 1);
  return true;
}

bool changes_the_kind(Plan& plan) {
  const auto place = some(plan, [](const Action&) { return true; });
  Action& action = at(plan, *place);
  const Kind before = action.kind;
  action.kind = static_cast<Kind>(between(0, static_cast<int>(Kind::drain)));
  return action.kind != before;
}

bool tightens_a_bound(Plan& plan) {
  std::vector<int>* bounds = one_in(2) ? &plan.activations : &plan.versions;
  --bounds->at(static_cast<size_t>(between(0, static_cast<int>(bounds->size()) - 1)));
  return true;
}

struct Named {
  const char* name;
  Mutation mutate;
};

class Mutants : public ::testing::TestWithParam<Named> {};

TEST_P(Mutants, are_refused) {
  int refused = 0;
  EXPECT_TRUE(holds(GetParam().name, 300, [&] {
    Plan plan = make_plan(random_request({.stages = 4, .micro_batches = 5, .batches = 3}));
    if (!GetParam().mutate(plan)) return;
    log_plan(plan);
    const Verdict verdict = check(plan);
    RC_ASSERT(!verdict.ok());
    RC_ASSERT(verdict.error.find('\n') == std::string::npos);
    ++refused;
  }));
  EXPECT_GT(refused, 10) << "it hardly ever had something to change";
}

INSTANTIATE_TEST_SUITE_P(
    Plan, Mutants,
    ::testing::Values(Named{"drop_receive", drops<Kind::receive>}, Named{"drop_send", drops<Kind::send>},
                      Named{"drop_forward", drops<Kind::forward>}, Named{"drop_backward", drops<Kind::backward>},
                      Named{"drop_weight_gradient", drops<Kind::weight_gradient>},
                      Named{"drop_step", drops<Kind::step>}, Named{"drop_stash", drops<Kind::stash>},
                      Named{"drop_predict", drops<Kind::predict>}, Named{"drop_retire", drops<Kind::retire>},
                      Named{"drop_drain", drops<Kind::drain>}, Named{"double_receive", doubles<Kind::receive>},
                      Named{"double_send", doubles<Kind::send>}, Named{"double_forward", doubles<Kind::forward>},
                      Named{"double_backward", doubles<Kind::backward>},
                      Named{"double_weight_gradient", doubles<Kind::weight_gradient>},
                      Named{"double_step", doubles<Kind::step>}, Named{"double_stash", doubles<Kind::stash>},
                      Named{"double_predict", doubles<Kind::predict>}, Named{"double_retire", doubles<Kind::retire>},
                      Named{"double_drain", doubles<Kind::drain>}, Named{"shift_version", shifts_a_version},
                      Named{"shift_staleness", shifts_a_staleness}, Named{"swap_versions", swaps_versions},
                      Named{"swap_sends", swaps_sends}, Named{"swap_receives", swaps_receives},
                      Named{"shrink_buffer", shrinks_a_buffer}, Named{"turn_message", turns_a_message},
                      Named{"renumber", renumbers}, Named{"other_stage", moves_to_another_stage},
                      Named{"other_kind", changes_the_kind}, Named{"tighten_bound", tightens_a_bound}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ddip::schedule
