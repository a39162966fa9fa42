// A model as stages, in C++: what each one computes, and whose parameters it trains.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <vector>

#include "ddip/pipeline/call.h"

namespace ddip::pipeline {

// A module's forward as a function; what it can be called with can be asked.
template <typename Module>
struct Forward {
  std::shared_ptr<Module> module;

  template <typename... Arguments>
  auto operator()(Arguments&&... arguments)
      -> decltype(std::declval<Module&>().forward(std::forward<Arguments>(arguments)...)) {
    return module->forward(std::forward<Arguments>(arguments)...);
  }
};

// One stage. Made of what TORCH_MODULE makes or a std::shared_ptr to a module, whose forward takes what the stage
// before returned; of a module and a function that uses it; or of a function alone, which has nothing to train.
//
// Several arguments are the items of the tuple or list that the stage before returned. A stage into which several edges
// lead gets one argument from each; one that several edges leave returns one value for all of them, or a tuple with one
// for each.
struct Part {
  std::shared_ptr<torch::nn::Module> module;  // null: nothing to train
  std::function<Value(const Value&)> forward;
  // Asked after each forward: losses of this stage's own, means over the samples, that are added to that of the end.
  std::function<std::vector<at::Tensor>()> auxiliary_losses;
  std::string name;                   // for people
  std::optional<std::string> prefix;  // of its parameters' names in the pipeline's state; none: "0." on stage 0
  std::vector<std::string> layers;    // the model's, that are in it; empty: nobody has cut it
  // Of a Graph's stage: the names of the values that come in, in their order, and of those that leave.
  std::vector<std::string> takes, gives;

  template <typename Kind>
  Part(const torch::nn::ModuleHolder<Kind>& holder) : Part(holder.ptr()) {}  // NOLINT: a list of modules is a model

  template <std::derived_from<torch::nn::Module> Kind>
  Part(std::shared_ptr<Kind> inner)  // NOLINT: likewise
      : Part(inner, Forward<Kind>{inner}, arguments_of_forward<Kind>()) {}

  template <typename Function>
  Part(std::shared_ptr<torch::nn::Module> inner, Function function)
      : Part(std::move(inner), std::move(function), arguments_of_function<Function, std::tuple<at::Tensor>>()) {}

  template <typename Function>
    requires(!std::is_base_of_v<torch::detail::ModuleHolderIndicator, Function> && !std::same_as<Function, Part> &&
             !requires { typename Function::element_type; })
  Part(Function function)  // NOLINT: likewise
      : Part(nullptr, std::move(function), arguments_of_function<Function, std::tuple<at::Tensor>>()) {}

  static std::string kind_of(const torch::nn::Module& module);  // for people

 private:
  template <typename Function, typename Types>
  Part(std::shared_ptr<torch::nn::Module> inner, Function function, std::type_identity<Types>)
      : module(std::move(inner)),
        forward([function](const Value& given) mutable { return call<Types>(function, given); }),
        name(module ? kind_of(*module) : "a function") {}
};

// Parts of as many layers, one behind the other, under the names that the layers have in the model.
std::vector<Part> cut(torch::nn::Sequential model, int stages);
// By stage the names of its layers, as saved_stages() has them. Throws ConfigError: they are not the model's, in order.
std::vector<Part> cut(torch::nn::Sequential model, const std::vector<std::vector<std::string>>& stages);
// Parts that end before these layers, the last one with the model.
std::vector<Part> cut_at(torch::nn::Sequential model, const std::vector<int>& ends);

// A stage's parameters, each once, and which of them are trained.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};
std::vector<NamedTensor> parameters_of(const Part& part);
std::vector<NamedTensor> trained_in(const Part& part);
int64_t trained_elements(const Part& part);

// Weights and buffers that two stages share would not be kept equal. Throws ConfigError that names both.
void refuse_tied(const std::vector<Part>& parts);

// What a stage's forward is in the executor's eyes: one value for each edge that comes in, one for each that leaves.
std::vector<Value> run_part(const Part& part, const std::vector<Value>& inputs, size_t outgoing);

}  // namespace ddip::pipeline
