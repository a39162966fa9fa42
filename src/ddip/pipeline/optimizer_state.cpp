#include "ddip/pipeline/optimizer_state.h"

#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <typeinfo>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

namespace optim = torch::optim;

// --- what each kind has. `see` is shown every name with its place, to write it or to read it: neither forgets one.

void see_options(optim::SGDOptions& options, auto&& see) {
  see("lr", options.lr());
  see("momentum", options.momentum());
  see("dampening", options.dampening());
  see("weight_decay", options.weight_decay());
  see("nesterov", options.nesterov());
}

void see_state(optim::SGDParamState& state, const optim::SGDOptions& /*options*/, auto&& see) {
  see("momentum_buffer", state.momentum_buffer());
}

// Without amsgrad, which no pipeline takes.
template <typename Options>
void see_adams_options(Options& options, auto&& see) {
  see("lr", options.lr());
  see("beta1", std::get<0>(options.betas()));
  see("beta2", std::get<1>(options.betas()));
  see("eps", options.eps());
  see("weight_decay", options.weight_decay());
}
void see_options(optim::AdamOptions& options, auto&& see) { see_adams_options(options, see); }
void see_options(optim::AdamWOptions& options, auto&& see) { see_adams_options(options, see); }

template <typename State>
void see_adams_state(State& state, auto&& see) {
  see("step", state.step());
  see("exp_avg", state.exp_avg());
  see("exp_avg_sq", state.exp_avg_sq());
}
void see_state(optim::AdamParamState& state, const optim::AdamOptions& /*options*/, auto&& see) {
  see_adams_state(state, see);
}
void see_state(optim::AdamWParamState& state, const optim::AdamWOptions& /*options*/, auto&& see) {
  see_adams_state(state, see);
}

void see_options(optim::RMSpropOptions& options, auto&& see) {
  see("lr", options.lr());
  see("alpha", options.alpha());
  see("eps", options.eps());
  see("weight_decay", options.weight_decay());
  see("momentum", options.momentum());
  see("centered", options.centered());
}

void see_state(optim::RMSpropParamState& state, const optim::RMSpropOptions& options, auto&& see) {
  see("step", state.step());
  see("square_avg", state.square_avg());
  see("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
  see("grad_avg", state.grad_avg(), options.centered());
}

void see_options(optim::AdagradOptions& options, auto&& see) {
  see("lr", options.lr());
  see("lr_decay", options.lr_decay());
  see("weight_decay", options.weight_decay());
  see("initial_accumulator_value", options.initial_accumulator_value());
  see("eps", options.eps());
}

void see_state(optim::AdagradParamState& state, const optim::AdagradOptions& /*options*/, auto&& see) {
  see("step", state.step());
  see("sum", state.sum());
}

template <typename OptionsOfKind, typename StateOfKind>
struct Kind {
  using Options = OptionsOfKind;
  using State = StateOfKind;
};

template <typename Function>
auto with_kind(const optim::Optimizer& optimizer, Function function) {
  const std::type_info& kind = typeid(optimizer);
  if (kind == typeid(optim::SGD)) return function("SGD", Kind<optim::SGDOptions, optim::SGDParamState>());
  if (kind == typeid(optim::Adam)) return function("Adam", Kind<optim::AdamOptions, optim::AdamParamState>());
  if (kind == typeid(optim::AdamW)) return function("AdamW", Kind<optim::AdamWOptions, optim::AdamWParamState>());
  if (kind == typeid(optim::RMSprop))
    return function("RMSprop", Kind<optim::RMSpropOptions, optim::RMSpropParamState>());
  if (kind == typeid(optim::Adagrad))
    return function("Adagrad", Kind<optim::AdagradOptions, optim::AdagradParamState>());
  throw ConfigError("what its optimizer carries is not known; expected SGD, Adam, AdamW, RMSprop or Adagrad");
}

// --- the two who are shown it

struct Write {
  const std::string prefix;
  NamedTensors& to;

  void operator()(const char* name, const at::Tensor& tensor, bool /*needed*/ = true) const {
    if (tensor.defined()) to[prefix + name] = tensor;
  }
  void operator()(const char* name, const int64_t& number) const {
    to[prefix + name] = at::full({}, number, at::kLong);
  }
  void operator()(const char* name, const double& number) const {
    to[prefix + name] = at::full({}, number, at::kDouble);
  }
  void operator()(const char* name, const bool& flag) const { to[prefix + name] = at::full({}, flag, at::kBool); }
};

struct Read {
  SavedTensors& from;
  const std::string prefix;
  const at::Tensor like;

  // It lies in memory as the parameter does: other strides may mean other kernels, and other bits.
  void operator()(const char* name, at::Tensor& tensor, bool needed = true) const {
    if (!needed && !from.has(prefix + name)) return;
    tensor = at::empty_like(like).copy_(from.take_like(prefix + name, like));
  }
  void operator()(const char* name, int64_t& number) const { number = from.take_count(prefix + name); }
  void operator()(const char* name, double& number) const {
    number = from.take(prefix + name, at::kDouble, {}).item<double>();
  }
  void operator()(const char* name, bool& flag) const { flag = from.take(prefix + name, at::kBool, {}).item<bool>(); }
};

// Which of the stage's parameters, by their numbers.
std::vector<int64_t> numbers_of(const optim::OptimizerParamGroup& group, const std::vector<at::Tensor>& parameters) {
  std::vector<int64_t> numbers;
  for (const at::Tensor& one : group.params()) {
    const auto found = std::ranges::find_if(parameters, [&](const at::Tensor& other) { return other.is_same(one); });
    numbers.push_back(found - parameters.begin());
  }
  return numbers;
}

}  // namespace

std::string kind_of(const optim::Optimizer& optimizer) {
  return with_kind(optimizer, [](const char* name, auto) { return std::string(name); });
}

NamedTensors optimizer_state(optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  return with_kind(optimizer, [&]<typename Of>(const char*, Of) {
    NamedTensors found;
    for (size_t number = 0; number < optimizer.param_groups().size(); ++number) {
      optim::OptimizerParamGroup& group = optimizer.param_groups()[number];
      auto& options = static_cast<typename Of::Options&>(group.options());
      const std::vector<int64_t> members = numbers_of(group, parameters);
      const std::string prefix = fmt::format("group.{}.", number);
      see_options(options, Write{prefix, found});
      found[prefix + "parameters"] = at::tensor(members, at::kLong);
      for (int64_t member : members) {
        const at::Tensor& parameter = parameters[static_cast<size_t>(member)];
        const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (state == optimizer.state().end()) continue;
        see_state(static_cast<typename Of::State&>(*state->second), options,
                  Write{fmt::format("state.{}.", member), found});
      }
    }
    return found;
  });
}

std::function<void()> restored_optimizer(SavedTensors& saved, const std::string& prefix, optim::Optimizer& optimizer,
                                         const std::vector<at::Tensor>& parameters) {
  struct Restored {
    std::vector<std::unique_ptr<optim::OptimizerOptions>> options;
    std::map<void*, std::unique_ptr<optim::OptimizerParamState>> states;
  };
  return with_kind(optimizer, [&]<typename Of>(const char*, Of) -> std::function<void()> {
    const at::NoGradGuard quiet;
    auto restored = std::make_shared<Restored>();  // shared, because a std::function is copied
    for (size_t number = 0; number < optimizer.param_groups().size(); ++number) {
      const optim::OptimizerParamGroup& group = optimizer.param_groups()[number];
      restored->options.push_back(group.options().clone());
      auto& options = static_cast<typename Of::Options&>(*restored->options.back());
      const std::string name = fmt::format("{}group.{}.", prefix, number);
      see_options(options, Read{saved, name, {}});
      const at::Tensor members = at::tensor(numbers_of(group, parameters), at::kLong);
      if (!saved.take_like(name + "parameters", members).equal(members))
        throw ConfigError(fmt::format("{}parameters are others than here", name));
      for (int64_t member : numbers_of(group, parameters)) {
        const std::string state_name = fmt::format("{}state.{}.", prefix, member);
        if (!saved.has_under(state_name)) continue;  // it has not stepped yet
        const at::Tensor& parameter = parameters[static_cast<size_t>(member)];
        auto state = std::make_unique<typename Of::State>();
        see_state(*state, options, Read{saved, state_name, parameter.detach()});
        restored->states[parameter.unsafeGetTensorImpl()] = std::move(state);
      }
    }
    return [restored, &optimizer] {
      optimizer.state().clear();
      for (auto& [parameter, state] : restored->states) optimizer.state()[parameter] = std::move(state);
      for (size_t i = 0; i < restored->options.size(); ++i)
        optimizer.param_groups()[i].set_options(std::move(restored->options[i]));
    };
  });
}

}  // namespace ddip::pipeline
