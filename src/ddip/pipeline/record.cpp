#include "ddip/pipeline/record.h"

#include <algorithm>
#include <cmath>

#include "ddip/base/check.h"

namespace ddip::pipeline {
namespace {

using schedule::Kind;

template <typename T>
auto find(T& entries, size_t place) {
  auto found = std::ranges::lower_bound(entries, place, {}, [](const auto& entry) { return entry.place; });
  DDIP_CHECK(found != entries.end() && found->place == place, "every action of this kind has an entry");
  return found;
}

}  // namespace

Record::Record(std::span<const schedule::Action> actions) : actions_(actions) {
  size_t forwards = 0, backwards = 0, steps = 0;
  for (const schedule::Action& action : actions) {
    forwards += action.kind == Kind::forward ? 1 : 0;
    backwards += action.kind == Kind::backward || action.kind == Kind::weight_gradient ? 1 : 0;
    steps += action.kind == Kind::step ? 1 : 0;
  }
  // What grows by itself would take up to twice as much.
  times_.reserve(actions.size());
  forwards_.reserve(forwards);
  backwards_.reserve(backwards);
  steps_.reserve(steps);
}

void Record::add(const Done& done) {
  const auto place = static_cast<uint32_t>(times_.size());
  times_.push_back({done.begin, done.end});
  switch (done.action.kind) {
    case Kind::forward: {
      const Rates rates = add_rates(done.used.rates);
      forwards_.push_back({.label = done.used.label,
                           .place = place,
                           .samples = static_cast<int32_t>(done.count),
                           .version = static_cast<int32_t>(done.used.version),
                           .rates = rates.list,
                           .pending = add_micro_batches(done.used.pending),
                           .groups = rates.groups,
                           .predicted = done.used.predicted});
      break;
    }
    case Kind::backward:
    case Kind::weight_gradient: {
      const Rates rates = add_rates(done.read.rates);
      backwards_.push_back({.count = done.count,
                            .place = place,
                            .version = static_cast<int32_t>(done.read.version),
                            .rates = rates.list,
                            .groups = rates.groups,
                            .from = static_cast<uint8_t>(done.read.from),
                            .split = done.split,
                            .loss_scale = static_cast<int8_t>(std::ilogb(done.loss_scale))});
      break;
    }
    case Kind::step:
      steps_.push_back({.place = place});
      step_later(place, done.stepped);
      break;
    default: break;
  }
}

void Record::step_later(size_t place, const Versions::Stepped& stepped) {
  *find(steps_, place) = {.count = stepped.count,
                          .norm = stepped.norm,
                          .scale = stepped.scale,
                          .place = static_cast<uint32_t>(place),
                          .micro_batches = add_micro_batches(stepped.micro_batches),
                          .rates = rates_.add(stepped.rates),
                          .left_out = stepped.left_out};
}

Done Record::at(size_t place) const {
  Done done{.action = actions_[place], .begin = times_[place].begin, .end = times_[place].end};
  switch (done.action.kind) {
    case Kind::forward: {
      const Forward& forward = *find(forwards_, place);
      done.count = forward.samples;
      done.used = {.label = forward.label,
                   .version = forward.version,
                   .staleness = done.action.staleness,
                   .predicted = forward.predicted,
                   .rates = rates_of({forward.rates, forward.groups}),
                   .pending = micro_batches_of(forward.pending)};
      break;
    }
    case Kind::backward:
    case Kind::weight_gradient: {
      const Backward& backward = *find(backwards_, place);
      done.count = backward.count;
      done.split = backward.split != 0;
      done.loss_scale = std::ldexp(1.0, backward.loss_scale);
      done.read = {.from = static_cast<ReadBack::From>(backward.from),
                   .version = backward.version,
                   .rates = rates_of({backward.rates, backward.groups})};
      break;
    }
    case Kind::step: {
      const Step& step = *find(steps_, place);
      const std::span<const double> rates = rates_.at(step.rates);
      done.count = step.count;
      done.stepped = {.micro_batches = micro_batches_of(step.micro_batches),
                      .count = step.count,
                      .norm = step.norm,
                      .scale = step.scale,
                      .left_out = step.left_out,
                      .rates = {rates.begin(), rates.end()}};
      break;
    }
    default: break;
  }
  return done;
}

Record::Rates Record::add_rates(const std::vector<std::vector<double>>& by_group) {
  std::vector<double> flat;
  for (const std::vector<double>& group : by_group) {
    DDIP_CHECK(group.size() == by_group.front().size(), "all groups' rates are asked for as many steps ahead");
    flat.insert(flat.end(), group.begin(), group.end());
  }
  return {.list = rates_.add(flat), .groups = static_cast<uint16_t>(by_group.size())};
}

std::vector<std::vector<double>> Record::rates_of(const Rates& rates) const {
  const std::span<const double> flat = rates_.at(rates.list);
  std::vector<std::vector<double>> by_group(rates.groups);
  const size_t steps = rates.groups > 0 ? flat.size() / rates.groups : 0;
  for (size_t group = 0; group < by_group.size(); ++group) {
    const std::span<const double> own = flat.subspan(group * steps, steps);
    by_group[group].assign(own.begin(), own.end());
  }
  return by_group;
}

int32_t Record::add_micro_batches(const std::vector<int64_t>& micro_batches) {
  std::vector<Run> runs;
  for (int64_t one : micro_batches) {
    if (!runs.empty() && one == runs.back().first + runs.back().count)
      ++runs.back().count;
    else
      runs.push_back({one, 1});
  }
  return micro_batches_.add(runs);
}

std::vector<int64_t> Record::micro_batches_of(int32_t list) const {
  std::vector<int64_t> found;
  for (const Run& run : micro_batches_.at(list)) {
    for (int64_t i = 0; i < run.count; ++i) found.push_back(run.first + i);
  }
  return found;
}

size_t Record::bytes() const {
  return std::span(times_).size_bytes() + std::span(forwards_).size_bytes() + std::span(backwards_).size_bytes() +
         std::span(steps_).size_bytes() + rates_.bytes() + micro_batches_.bytes();
}

}  // namespace ddip::pipeline
