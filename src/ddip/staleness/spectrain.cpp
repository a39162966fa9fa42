// SpecTrain: linear prediction by the distance between stages instead of by the staleness at hand, in the backward too,
// so that every stage works with the weights of about the same time. ŵ = w − η·s·v.
#include "ddip/staleness/linear.h"
#include "ddip/staleness/policies.h"

namespace ddip::staleness {
namespace {

class Spectrain : public Policy {
 public:
  Needs needs(const Optimizer& /*optimizer*/) const override {
    return {.forward_weights = true, .steady = true, .backward_weights = true};
  }

  bool before_forward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    return predict(optimizer, moment, moment.stage / 2 + moment.stages - moment.stage - 1, out);
  }
  bool before_backward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    return predict(optimizer, moment, moment.stage / 2, out);
  }

 private:
  static bool predict(const Optimizer& optimizer, const Moment& moment, int micro_batches, at::Tensor& out) {
    const int steps = (micro_batches + moment.accumulate - 1) / moment.accumulate;
    if (steps == 0) return false;
    auto coefficients = [&](size_t group) {
      const double rate = optimizer.rule == Rule::sutskever ? 1 : rate_of(moment, group, 1);
      return Coefficients{.velocity = -(rate * steps)};
    };
    return write_linear(optimizer, {}, coefficients, out);
  }
};

}  // namespace

std::unique_ptr<Policy> make_spectrain() { return std::make_unique<Spectrain>(); }

}  // namespace ddip::staleness
