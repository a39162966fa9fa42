#include "ddip/pipeline/split_backward.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace ddip::pipeline {
namespace {

using Forward = std::function<at::Tensor(const at::Tensor&)>;

struct Found {
  at::Tensor input;
  std::vector<at::Tensor> weights;
  bool split = false;
  std::string why;
};

Roots roots_of(const at::Tensor& y, const at::Tensor& gradient) {
  Roots roots;
  roots.edges.push_back(torch::autograd::impl::gradient_edge(y));
  roots.gradients.push_back(gradient);
  return roots;
}

// The same forward once more, with its backward in two parts; `between` is called between them.
Found in_two_parts(const Forward& forward, const at::Tensor& x, const at::Tensor& gradient,
                   const std::vector<at::Tensor>& weights, const std::function<void()>& between = {}) {
  for (const at::Tensor& weight : weights) at::Tensor(weight).mutable_grad() = at::Tensor();
  Found found;
  Entry entry;
  Value inside = entry.enter({x});
  at::Tensor y = forward(*inside.tensor());
  auto split = SplitBackward::of(roots_of(y, gradient), entry.ends(), found.why);
  found.split = split != nullptr;
  if (!split) return found;
  inside = Value();
  y = at::Tensor();
  split->input_gradients();
  found.input = *std::get<Value::Tuple>(entry.gradients().content).items.at(0).tensor();
  if (between) between();
  split->weight_gradients();
  for (const at::Tensor& weight : weights) found.weights.push_back(weight.grad());
  return found;
}

Found at_once(const Forward& forward, const at::Tensor& x, const at::Tensor& gradient,
              const std::vector<at::Tensor>& weights) {
  at::Tensor leaf = x.detach().clone().requires_grad_();
  std::vector<at::Tensor> inputs = weights;
  inputs.push_back(leaf);
  auto gradients = torch::autograd::grad({forward(leaf * 1)}, inputs, {gradient}, {}, false, true);
  return {gradients.back(), {gradients.begin(), gradients.end() - 1}};
}

void expect_equal(const Found& found, const Found& expected) {
  ASSERT_TRUE(found.split);
  EXPECT_TRUE(at::equal(found.input, expected.input));
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (size_t i = 0; i < found.weights.size(); ++i) EXPECT_TRUE(at::equal(found.weights[i], expected.weights[i])) << i;
}

struct SplitBackwardTest : testing::Test {
  SplitBackwardTest() { torch::manual_seed(3); }
  torch::nn::Sequential net{torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8), torch::nn::GELU(),
                            torch::nn::Linear(8, 5)};
  at::Tensor x = torch::randn({4, 6}), gradient = torch::randn({4, 5});
  Forward forward = [this](const at::Tensor& given) { return net->forward(given); };
};

TEST_F(SplitBackwardTest, GivesTheSameBitsAsOneBackward) {
  expect_equal(in_two_parts(forward, x, gradient, net->parameters()), at_once(forward, x, gradient, net->parameters()));
}

TEST_F(SplitBackwardTest, ConvolutionsAndNormsToo) {
  torch::nn::Sequential images(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)), torch::nn::BatchNorm2d(4),
                               torch::nn::ReLU(), torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 3, 3)));
  Forward convolve = [&](const at::Tensor& given) { return images->forward(given); };
  at::Tensor picture = torch::randn({3, 2, 8, 8}), back = torch::randn({3, 3, 4, 4});
  expect_equal(in_two_parts(convolve, picture, back, images->parameters()),
               at_once(convolve, picture, back, images->parameters()));
}

TEST_F(SplitBackwardTest, WeightsGetNothingBeforeTheSecondPart) {
  Found found = in_two_parts(forward, x, gradient, net->parameters(), [this] {
    for (const at::Tensor& weight : net->parameters()) EXPECT_FALSE(weight.grad().defined());
  });
  ASSERT_TRUE(found.split);
  for (const at::Tensor& weight : found.weights) EXPECT_TRUE(weight.defined());
}

// A weight that is used twice, a way around a layer, and a loss of a weight alone: each path counts once.
TEST_F(SplitBackwardTest, EveryPathCountsOnce) {
  at::Tensor shared = torch::randn({6, 6}).requires_grad_(), alone = torch::randn({6}).requires_grad_();
  Forward twice = [&](const at::Tensor& given) {
    at::Tensor hidden = given.mm(shared).tanh() + given;
    return hidden.mm(shared) * alone.exp() + alone;
  };
  at::Tensor back = torch::randn({4, 6});
  expect_equal(in_two_parts(twice, x, back, {shared, alone}), at_once(twice, x, back, {shared, alone}));
}

TEST_F(SplitBackwardTest, RootsThatLeadToNoInputAreOfTheSecondPart) {
  at::Tensor weight = torch::randn({6, 5}).requires_grad_();
  Entry entry;
  Value inside = entry.enter({x});
  at::Tensor y = inside.tensor()->mm(weight), penalty = weight.pow(2).sum();
  Roots roots = roots_of(y, gradient);
  roots.edges.push_back(torch::autograd::impl::gradient_edge(penalty));
  roots.gradients.push_back(at::full({}, 0.5));
  std::string why;
  auto split = SplitBackward::of(roots, entry.ends(), why);
  ASSERT_TRUE(split);
  split->input_gradients();
  EXPECT_FALSE(weight.grad().defined());
  split->weight_gradients();
  EXPECT_TRUE(at::allclose(weight.grad(), x.t().mm(gradient) + weight.detach()));
}

TEST_F(SplitBackwardTest, AGraphDeeperThanAStackIsNoTrouble) {
  at::Tensor weight = torch::ones({6}).requires_grad_();
  Forward deep = [&](const at::Tensor& given) {
    at::Tensor now = given;
    for (int i = 0; i < 50'000; ++i) now = now + weight;
    return now;
  };
  at::Tensor back = torch::ones({4, 6});
  Found found = in_two_parts(deep, x, back, {weight});
  ASSERT_TRUE(found.split);
  EXPECT_TRUE(at::equal(found.weights[0], at::full({6}, 200'000.0)));
}

TEST_F(SplitBackwardTest, NothingToSplitWithoutWeightsOrWithoutInputs) {
  Found found = in_two_parts([](const at::Tensor& given) { return given.tanh(); }, x, x, {});
  EXPECT_FALSE(found.split);
  EXPECT_TRUE(found.why.empty());
  at::Tensor weight = torch::randn({4, 5}).requires_grad_();
  found = in_two_parts([&](const at::Tensor&) { return weight * 2; }, x, gradient, {weight});
  EXPECT_FALSE(found.split);
}

TEST_F(SplitBackwardTest, WhatSomebodyHasHookedRunsOnce) {
  int calls = 0;
  Forward hooked = [&](const at::Tensor& given) {
    at::Tensor y = net->forward(given);
    y.register_hook([&calls](const at::Tensor&) { ++calls; });
    return y;
  };
  Found found = in_two_parts(hooked, x, gradient, net->parameters());
  EXPECT_FALSE(found.split);
  EXPECT_EQ(found.why, "AddmmBackward0");
}

struct Double : torch::autograd::Function<Double> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * weight;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1], gradients[0] * saved[0]};
  }
};

TEST_F(SplitBackwardTest, AFunctionOfSomebodysOwnIsWhole) {
  at::Tensor weight = torch::randn({4, 6}).requires_grad_();
  Found found = in_two_parts([&](const at::Tensor& given) { return Double::apply(given, weight); }, x, x, {weight});
  EXPECT_FALSE(found.split);
  EXPECT_NE(found.why.find("Double"), std::string::npos) << found.why;
}

}  // namespace
}  // namespace ddip::pipeline
