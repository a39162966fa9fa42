// A C++ function of (output, target) as a pipeline's loss.
#pragma once

#include <utility>

#include "ddip/pipeline/call.h"
#include "ddip/pipeline/stage.h"

namespace ddip::pipeline {

// It gives the mean over the samples, or a pair (sum, count of what it is a sum over).
class LossFunction {
 public:
  template <typename Function>
    requires(!std::same_as<std::decay_t<Function>, LossFunction>)
  LossFunction(Function function)  // NOLINT: a function is a loss
      : function_([function](const Value& output, const Value& target, int64_t samples) mutable {
          using Types = typename decltype(arguments_of_function<Function, std::tuple<at::Tensor, at::Tensor>>())::type;
          static_assert(std::tuple_size_v<Types> == 2, "a loss takes an output and a target");
          return counted(function(Crossing<std::tuple_element_t<0, Types>>::from(output),
                                  Crossing<std::tuple_element_t<1, Types>>::from(target)),
                         samples);
        }) {}

  Loss operator()(const Value& output, const Value& target, int64_t samples) const {
    return function_(output, target, samples);
  }

 private:
  static Loss counted(const at::Tensor& mean, int64_t samples) {
    // Half of a million is no number of half precision.
    return {(mean.scalar_type() == at::kHalf ? mean.to(at::kFloat) : mean) * samples, static_cast<double>(samples)};
  }
  template <typename Count>
  static Loss counted(const std::pair<at::Tensor, Count>& found, int64_t /*samples*/) {
    return {found.first, static_cast<double>(found.second)};
  }

  std::function<Loss(const Value&, const Value&, int64_t)> function_;
};

}  // namespace ddip::pipeline
