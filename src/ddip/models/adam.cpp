#include "ddip/models/adam.h"

#include "ddip/base/check.h"

namespace ddip::models {
namespace {

constexpr double kMeanDecay = 0.9;
constexpr double kSquareDecay = 0.999;
constexpr double kEpsilon = 1e-8;

}  // namespace

Adam::Adam(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
  count_ = at::zeros({}, at::TensorOptions(at::kFloat).device(parameters_.at(0).device()));
  for (const at::Tensor& parameter : parameters_) {
    means_.push_back(at::zeros_like(parameter));
    squares_.push_back(at::zeros_like(parameter));
  }
}

bool Adam::has_gradients() const {
  return std::all_of(parameters_.begin(), parameters_.end(),
                     [](const at::Tensor& one) { return one.grad().defined(); });
}

void Adam::step(double learning_rate) {
  const at::NoGradGuard no_gradients;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    DDIP_CHECK(parameter.grad().defined(), "every parameter has a gradient");
    gradients.push_back(parameter.grad());
  }
  count_ += 1;
  steps_.assign(parameters_.size(), count_);
  at::_fused_adam_(parameters_, gradients, means_, squares_, /*max_exp_avg_sqs=*/{}, steps_, learning_rate, kMeanDecay,
                   kSquareDecay, /*weight_decay=*/0, kEpsilon, /*amsgrad=*/false, /*maximize=*/false);
}

void Adam::zero_gradients() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

std::vector<Adam::Named> Adam::state(const std::vector<std::string>& names) const {
  DDIP_CHECK(names.size() == parameters_.size(), "one name for each parameter");
  std::vector<Named> state = {{"step", count_}};
  for (size_t index = 0; index < names.size(); ++index) {
    state.push_back({"mean." + names[index], means_[index]});
    state.push_back({"square." + names[index], squares_[index]});
  }
  return state;
}

}  // namespace ddip::models
