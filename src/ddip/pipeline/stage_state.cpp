#include "ddip/pipeline/stage_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "ddip/base/error.h"
#include "ddip/pipeline/optimizer_state.h"

namespace ddip::pipeline {
namespace {

// Weights, frozen ones too, and buffers. REQUIRES: the module sees its true weights.
std::vector<NamedTensor> model_of(const Part& part) {
  std::vector<NamedTensor> found = parameters_of(part);
  if (!part.module) return found;
  for (const auto& item : part.module->named_buffers()) {
    if (item.value().defined()) found.push_back({item.key(), item.value()});
  }
  return found;
}

// A policy has memory as the weights', and of this a number for each slice of it.
constexpr std::string_view kBySlice = "largest_rates";

staleness::State taken_policy(SavedTensors& saved, const StageOnDisk& stage, staleness::Policy& policy) {
  const at::Tensor& truth = stage.versions->weights().truth();
  const auto slices = static_cast<int64_t>(stage.stepping->asks().optimizer().groups.size());
  staleness::State state;
  for (auto& [name, tensor] : saved.take_under(stage.prefix() + "policy.")) {
    const bool flat = tensor.sizes() == truth.sizes() && tensor.scalar_type() == truth.scalar_type();
    const bool numbers = tensor.sizes() == at::IntArrayRef(slices) && tensor.scalar_type() == at::kDouble;
    if (name == kBySlice ? !numbers : !flat)
      throw ConfigError(fmt::format("{}policy.{} is not of this stage", stage.prefix(), name));
    state[name] = name != kBySlice ? tensor.to(truth.device()) : tensor;
  }
  auto same_name = [](const auto& left, const auto& right) { return left.first == right.first; };
  try {
    policy.load_state(state);
    if (std::ranges::equal(policy.state(), state, same_name)) return state;
  } catch (const std::exception&) {
    // It looked for something that is not there.
  }
  throw ConfigError(fmt::format("{}policy is not of this policy", stage.prefix()));
}

}  // namespace

NamedTensors stage_state(const StageOnDisk& stage) {
  const std::string prefix = stage.prefix();
  if (stage.versions) stage.versions->settle();
  NamedTensors found;
  for (const auto& [name, tensor] : model_of(*stage.part)) found[prefix + "model." + name] = tensor;
  if (!stage.versions) return found;
  found[prefix + "steps"] = at::full({}, stage.stepping->steps(), at::kLong);
  found[prefix + "version"] = at::full({}, stage.versions->version(), at::kLong);
  found[prefix + "first_rates"] = at::tensor(stage.stepping->first_rates(), at::kDouble);
  for (const auto& [name, tensor] : optimizer_state(stage.stepping->optimizer(), stage.versions->weights().masters()))
    found[prefix + "optimizer." + name] = tensor;
  for (const auto& [name, tensor] : stage.versions->policy().state()) found[prefix + "policy." + name] = tensor;
  return found;
}

std::function<void()> restored_stage(SavedTensors& saved, const StageOnDisk& stage, staleness::Policy& policy) {
  const std::string prefix = stage.prefix();
  std::vector<std::pair<at::Tensor, at::Tensor>> model;
  for (const auto& [name, tensor] : model_of(*stage.part))
    model.emplace_back(tensor, saved.take_like(prefix + "model." + name, tensor));
  saved.require_none_under(prefix + "model.");
  auto restore_model = [model = std::move(model)] {
    const at::NoGradGuard quiet;
    for (const auto& [to, from] : model) at::Tensor(to).copy_(from);
  };
  if (!stage.versions) return restore_model;

  const int64_t steps = saved.take_count(prefix + "steps"), version = saved.take_count(prefix + "version");
  const at::Tensor rates =
      saved.take_like(prefix + "first_rates", at::tensor(stage.stepping->first_rates(), at::kDouble));
  const auto* rate = rates.const_data_ptr<double>();
  std::vector<double> first_rates(rate, rate + rates.numel());
  auto restore_optimizer = restored_optimizer(saved, prefix + "optimizer.", stage.stepping->optimizer(),
                                              stage.versions->weights().masters());
  staleness::State policy_state = taken_policy(saved, stage, policy);
  return [=] {
    stage.versions->reset();  // the module sees its true weights
    restore_model();
    restore_optimizer();
    stage.stepping->restore(steps, first_rates);
    stage.versions->policy().load_state(policy_state);
    stage.versions->restore(version);
  };
}

}  // namespace ddip::pipeline
