#include "ddip/pipeline/versions.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace ddip::pipeline {
namespace {

// Predicts the number of its calls, and tells it.
class Counting : public staleness::Policy {
 public:
  explicit Counting(staleness::Needs needs) : needs_(needs) {}
  staleness::Needs needs(const staleness::Optimizer& /*optimizer*/) const override { return needs_; }
  bool before_forward(const staleness::Optimizer& /*optimizer*/, const staleness::Moment& moment,
                      at::Tensor& out) override {
    ++calls;
    if (moment.staleness == 0) return false;
    out.fill_(calls);
    return true;
  }
  int calls = 0;

 private:
  const staleness::Needs needs_;
};

// One parameter, whose step adds 100.
struct Bench {
  explicit Bench(staleness::Needs needs)
      : parameter(torch::zeros({16}).requires_grad_()),
        weights(std::make_shared<Weights>(std::vector<at::Tensor>{parameter}, std::vector<std::string>{"w"}, true)),
        policy(std::make_shared<Counting>(needs)),
        versions(weights, policy,
                 {.optimizer = [] { return staleness::Optimizer(); },
                  .rates = [](int steps) { return std::vector(1, std::vector(static_cast<size_t>(steps), 0.1)); },
                  .step = [this](const std::vector<double>&) { weights->truth().add_(100); },
                  .stepped = {}},
                 0, 2) {
    versions.begin({.mean_staleness = 1, .accumulate = 2});
  }

  float shown() const { return parameter[0].item<float>(); }
  void step() { versions.step({.count = 1, .micro_batches = 1}, {}, 0); }

  at::Tensor parameter;
  std::shared_ptr<Weights> weights;
  std::shared_ptr<Counting> policy;
  Versions versions;
};

TEST(Versions, ASteadyPredictionIsMadeOnceBetweenTwoSteps) {
  Bench bench({.forward_weights = true, .steady = true});
  for (int64_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
    Used used = bench.versions.before_forward(micro_batch, 0, 1);
    EXPECT_TRUE(used.predicted);
    EXPECT_EQ(bench.shown(), 1);
    bench.versions.before_backward(micro_batch, used);
    EXPECT_EQ(bench.shown(), 0) << "the backward sees the true ones";
  }
  EXPECT_EQ(bench.policy->calls, 1);
  bench.versions.before_forward(3, 0, 2);
  EXPECT_EQ(bench.shown(), 2) << "at another staleness it is another one";
  bench.step();
  bench.versions.before_forward(4, 1, 2);
  EXPECT_EQ(bench.shown(), 3) << "and after a step";
  bench.versions.begin({.mean_staleness = 1, .accumulate = 2});
  bench.versions.before_forward(5, 0, 2);
  EXPECT_EQ(bench.shown(), 4) << "and in another run, whose rates may be others";
  bench.versions.before_forward(6, 0, 0);
  bench.versions.before_forward(7, 0, 0);
  EXPECT_EQ(bench.policy->calls, 5) << "that there is nothing to predict is asked once, too";
  EXPECT_EQ(bench.shown(), 100);
}

TEST(Versions, AnUnsteadyPredictionIsMadeForEachForward) {
  Bench bench({.forward_weights = true});
  for (int64_t micro_batch = 0; micro_batch < 3; ++micro_batch) bench.versions.before_forward(micro_batch, 0, 1);
  EXPECT_EQ(bench.shown(), 3);
}

TEST(Versions, WhatABackwardNeedsIsKeptUntilTheLastOfThem) {
  Bench bench({.forward_weights = true, .steady = true, .stash = true});
  Used first = bench.versions.before_forward(0, 0, 1), second = bench.versions.before_forward(1, 0, 1);
  bench.step();
  Used third = bench.versions.before_forward(2, 1, 1);
  EXPECT_EQ(bench.shown(), 2);
  EXPECT_EQ(bench.versions.kept(), 2) << "two micro-batches share the first";
  bench.versions.before_backward(0, first);
  bench.versions.after_backward(0, first, 1);
  bench.versions.before_backward(1, second);
  EXPECT_EQ(bench.shown(), 1);
  bench.versions.after_backward(1, second, 1);
  EXPECT_EQ(bench.versions.kept(), 1);
  bench.versions.before_backward(2, third);
  EXPECT_EQ(bench.shown(), 2);
  bench.versions.after_backward(2, third, 1);
  EXPECT_EQ(bench.versions.kept(), 0);
  bench.versions.before_forward(3, 1, 1);
  EXPECT_EQ(bench.shown(), 3) << "what was given back is not taken for the prediction of now";
}

TEST(Versions, EachForwardHasNoiseOfItsOwnAndItsBackwardTheSame) {
  Bench bench(staleness::Needs{});
  bench.weights->truth().fill_(1);
  bench.versions.begin({.smoothing_radius = 0.5, .seed = 3});
  std::vector<at::Tensor> seen;
  std::vector<Used> used;
  for (int64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
    used.push_back(bench.versions.before_forward(micro_batch, 0, 0));
    seen.push_back(bench.parameter.detach().clone());
  }
  EXPECT_FALSE(at::equal(seen[0], seen[1]));
  EXPECT_FALSE(at::equal(seen[0], at::ones({16})));
  for (int64_t micro_batch : {1, 0}) {
    EXPECT_EQ(bench.versions.before_backward(micro_batch, used[static_cast<size_t>(micro_batch)]).from,
              ReadBack::From::forward);
    EXPECT_TRUE(at::equal(bench.parameter.detach(), seen[static_cast<size_t>(micro_batch)]));
    bench.versions.after_backward(micro_batch, used[static_cast<size_t>(micro_batch)], 1);
  }
  EXPECT_EQ(bench.versions.kept(), 0) << "nobody needs it any more";
  EXPECT_TRUE(at::equal(bench.weights->truth().slice(0, 0, 16), at::ones({16}))) << "the true ones stay";
  bench.versions.begin({.smoothing_radius = 0.5, .seed = 3});
  bench.versions.before_forward(1, 0, 0);
  EXPECT_TRUE(at::equal(bench.parameter.detach(), seen[1])) << "the same for the same seed and number";
  bench.versions.begin({.smoothing_radius = 0.5, .seed = 3, .first_micro_batch = 1});
  bench.versions.before_forward(0, 0, 0);
  EXPECT_TRUE(at::equal(bench.parameter.detach(), seen[1])) << "which goes on over the runs";
  bench.versions.begin({});
  bench.versions.before_forward(0, 0, 0);
  EXPECT_EQ(bench.shown(), 1) << "off";
}

}  // namespace
}  // namespace ddip::pipeline
