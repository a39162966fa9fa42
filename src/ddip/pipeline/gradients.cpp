#include "ddip/pipeline/gradients.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace ddip::pipeline {
namespace {

namespace impl = torch::autograd::impl;

void move_to(const at::Tensor& place, at::Tensor& gradient) {
  place.copy_(gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
  gradient = place;
}

class Mover : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Mover(at::Tensor place) : place_(std::move(place)) {}
  void operator()(const at::Tensor& parameter) override {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && !gradient.is_same(place_)) move_to(place_, gradient);
  }
  bool moves_to(const at::Tensor& place) const { return place_.is_same(place); }

 private:
  const at::Tensor place_;
};

}  // namespace

Gradients::Gradients(std::vector<at::Tensor> parameters, const FlatLayout& layout)
    : parameters_(std::move(parameters)), flat_(layout.zeros()), places_(layout.slices(flat_)) {
  clear();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& hook = impl::post_acc_grad_hooks(parameters_[i]);
    // A parameter has one, and Python's go first; flat() moves what nobody has moved.
    if (!hook || dynamic_cast<Mover*>(hook.get()))
      impl::set_post_acc_grad_hooks(parameters_[i], std::make_unique<Mover>(places_[i]));
  }
}

Gradients::~Gradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto* mover = dynamic_cast<Mover*>(impl::post_acc_grad_hooks(parameters_[i]).get());
    if (mover && mover->moves_to(places_[i])) impl::set_post_acc_grad_hooks(parameters_[i], nullptr);
  }
}

const at::Tensor& Gradients::flat() {
  at::NoGradGuard quiet;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (gradient.defined()) {
      reached_[i] = true;
      if (!gradient.is_same(places_[i])) move_to(places_[i], gradient);
    } else if (!zeroed_[i]) {
      places_[i].zero_();  // the first that comes will take this place
      zeroed_[i] = true;
    }
  }
  return flat_;
}

void Gradients::clear() {
  set_aside();
  reached_.assign(parameters_.size(), false);
}

void Gradients::set_aside() {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  zeroed_.assign(parameters_.size(), false);
}

}  // namespace ddip::pipeline
