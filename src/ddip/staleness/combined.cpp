// "msnag+stash": several policies as one.
#include "ddip/staleness/policies.h"

namespace ddip::staleness {
namespace {

class Combined : public Policy {
 public:
  explicit Combined(std::vector<std::unique_ptr<Policy>> parts) : parts_(std::move(parts)) {}

  Needs needs(const Optimizer& optimizer) const override {
    Needs all{.steady = true};
    for (const auto& part : parts_) {
      const Needs one = part->needs(optimizer);
      all.forward_weights |= one.forward_weights;
      all.steady &= one.steady || !one.forward_weights;
      all.backward_weights |= one.backward_weights;
      all.stash |= one.stash;
      all.pending |= one.pending;
      all.own_gradient |= one.own_gradient;
      all.weights_before_step |= one.weights_before_step;
      all.step |= one.step;
    }
    if (all.stash) all.backward_weights = false;  // what the forward used stands
    return all;
  }

  bool before_forward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    for (const auto& part : parts_)
      if (part->before_forward(optimizer, moment, out)) return true;
    return false;
  }
  bool before_backward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    if (needs(optimizer).stash) return false;
    for (const auto& part : parts_)
      if (part->before_backward(optimizer, moment, out)) return true;
    return false;
  }
  void after_backward(const Optimizer& optimizer, const at::Tensor& used, at::Tensor& gradient) override {
    for (const auto& part : parts_) part->after_backward(optimizer, used, gradient);
  }
  void before_step(const Optimizer& optimizer, Step& step) override {
    for (const auto& part : parts_) part->before_step(optimizer, step);
  }
  void after_step(Optimizer& optimizer, const Step& step) override {
    for (const auto& part : parts_) part->after_step(optimizer, step);
  }

  // Two of a kind are refused, so the names cannot clash.
  State state() const override {
    State all;
    for (const auto& part : parts_) all.merge(part->state());
    return all;
  }
  void load_state(const State& state) override {
    for (const auto& part : parts_) part->load_state(state);
  }

 private:
  const std::vector<std::unique_ptr<Policy>> parts_;
};

}  // namespace

std::unique_ptr<Policy> make_combined(std::vector<std::unique_ptr<Policy>> parts) {
  return std::make_unique<Combined>(std::move(parts));
}

}  // namespace ddip::staleness
