#include "ddip/pipeline/weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

// A layer that saves its weight as a view (linear) and one that saves the parameter itself (convolution).
struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear linear{nullptr};
  Net() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)));
    linear = register_module("linear", torch::nn::Linear(3 * 4, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return linear(torch::tanh(conv(x)).flatten(1)); }
};

Weights weights_of(Net& net, bool apart) {
  return Weights(net.parameters(), {"conv.weight", "conv.bias", "linear.weight", "linear.bias"}, apart);
}

// Gradients of x and of the parameters when the activations are those of `first` and the backward multiplies with
// `second`, by hand.
std::vector<at::Tensor> by_hand(const std::vector<at::Tensor>& first, const std::vector<at::Tensor>& second,
                                const at::Tensor& x, const at::Tensor& gradient) {
  at::Tensor hidden = torch::tanh(torch::conv2d(x, first[0], first[1]));
  at::Tensor flat = hidden.flatten(1);
  at::Tensor linear_weight = gradient.t().mm(flat), linear_bias = gradient.sum(0);
  at::Tensor inside = gradient.mm(second[2]).view_as(hidden) * (1 - hidden * hidden);
  auto [input, weight, bias] = at::convolution_backward(inside, x, second[0], at::IntArrayRef{3}, {1, 1}, {0, 0},
                                                        {1, 1}, false, {0, 0}, 1, {true, true, true});
  return {input, weight, bias, linear_weight, linear_bias};
}

TEST(Weights, AKeptGraphUsesWhatIsShownBeforeItsBackward) {
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  Weights weights = weights_of(*net, true);
  at::Tensor x = torch::randn({6, 2, 4, 4}).requires_grad_();
  at::Tensor gradient = torch::randn({6, 5});
  at::Tensor first = torch::randn_like(weights.truth()) * 0.3, second = torch::randn_like(first) * 0.3;

  weights.show(first);
  at::Tensor y = net->forward(x);
  weights.show(second);
  y.backward(gradient);

  auto expected = by_hand(weights.slices(first), weights.slices(second), x.detach(), gradient);
  auto found = weights.slices(weights.gradients().flat());
  EXPECT_TRUE(at::allclose(x.grad(), expected[0], 1e-4, 1e-5));
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::allclose(found[i], expected[i + 1], 1e-4, 1e-5)) << i;
  auto other = by_hand(weights.slices(first), weights.slices(first), x.detach(), gradient);
  EXPECT_FALSE(at::allclose(x.grad(), other[0], 1e-2, 1e-2)) << "it makes a difference which weights are used";
}

TEST(Weights, TheTrueOnesStayAsTheyAreWhileOthersAreShown) {
  auto net = std::make_shared<Net>();
  Weights weights = weights_of(*net, true);
  at::Tensor before = weights.truth().clone(), others = at::full_like(before, 7);
  weights.show(others);
  EXPECT_EQ(net->linear->weight[0][0].item<float>(), 7);
  EXPECT_TRUE(at::equal(weights.truth(), before));
  weights.show_truth();
  EXPECT_TRUE(at::equal(weights.truth(), before));
  EXPECT_TRUE(at::equal(net->linear->weight.detach(), weights.slices(before)[2]));
  EXPECT_EQ(others.sum().item<double>(), 7.0 * static_cast<double>(others.numel()));
}

TEST(Weights, NothingIsCopied) {
  auto net = std::make_shared<Net>();
  Weights weights = weights_of(*net, true);
  auto where = [&] { return static_cast<const float*>(net->conv->weight.const_data_ptr()); };
  EXPECT_EQ(where(), weights.truth().const_data_ptr<float>());
  at::Tensor others = at::zeros_like(weights.truth());
  weights.show(others);
  EXPECT_EQ(where(), others.const_data_ptr<float>());
  others.fill_(3);
  EXPECT_EQ(net->linear->bias[0].item<float>(), 3);
}

TEST(Weights, WhatIsShownLivesAsLongAsTheModule) {
  auto net = std::make_shared<Net>();
  {
    Weights weights = weights_of(*net, true);
    weights.show(at::full_like(weights.truth(), 5));
  }
  at::Tensor other = at::zeros({1 << 12});  // would take the memory, were it free
  EXPECT_EQ(net->linear->weight.sum().item<float>(), 5 * 60);
}

TEST(Weights, AStepOfTheMastersIsSeenByTheModuleOnlyIfTheTrueOnesAreShown) {
  for (bool apart : {false, true}) {
    auto net = std::make_shared<Net>();
    Weights weights = weights_of(*net, apart);
    net->forward(torch::randn({1, 2, 4, 4})).sum().backward();
    at::Tensor before = net->linear->bias.detach().clone();
    if (apart) weights.show(weights.truth().clone());
    torch::optim::SGD sgd(weights.masters(), 0.5);
    sgd.step();
    EXPECT_EQ(at::equal(net->linear->bias.detach(), before), apart);
    weights.show_truth();
    EXPECT_TRUE(at::allclose(net->linear->bias.detach(), before - 0.5)) << "the gradient of a sum is one";
  }
}

TEST(Weights, ALayoutThatIsDenseIsKept) {
  auto net = std::make_shared<Net>();
  net->conv->weight.set_data(net->conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  at::Tensor before = net->conv->weight.detach().clone();
  weights_of(*net, true);
  EXPECT_TRUE(net->conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::equal(net->conv->weight.detach(), before));
}

TEST(Weights, OfTwoTypesAreRefused) {
  at::Tensor a = torch::zeros({2}).requires_grad_(), b = torch::zeros({2}, at::kDouble).requires_grad_();
  try {
    Weights({a, b}, {"one", "two"}, false);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "the parameters one and two of one stage differ in type or device (Float and Double)");
  }
}

}  // namespace
}  // namespace ddip::pipeline
