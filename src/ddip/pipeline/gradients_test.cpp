#include "ddip/pipeline/gradients.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace ddip::pipeline {
namespace {

class GradientsTest : public testing::Test {
 protected:
  GradientsTest()
      : a(torch::ones({3}, at::requires_grad())),
        b(torch::ones({2, 2}, at::requires_grad())),
        unused(torch::ones({5}, at::requires_grad())),
        layout({a, b, unused}, {"a", "b", "unused"}),
        gradients({a, b, unused}, layout) {}

  // Adds `of_a` to each gradient of a, `of_b` to each of b.
  void backward(double of_a, double of_b) { (a.sum() * of_a + b.sum() * of_b).backward(); }
  void expect(double of_a, double of_b) {
    const at::Tensor flat = gradients.flat();
    const auto found = layout.slices(flat);
    EXPECT_TRUE(at::equal(found[0], at::full({3}, of_a))) << found[0];
    EXPECT_TRUE(at::equal(found[1], at::full({2, 2}, of_b))) << found[1];
    EXPECT_TRUE(at::equal(found[2], at::zeros({5})));
    EXPECT_EQ(flat.sum().item<double>(), 3 * of_a + 4 * of_b) << "between the parameters there is nothing";
  }

  at::Tensor a, b, unused;
  FlatLayout layout;
  Gradients gradients;
};

TEST_F(GradientsTest, AreSummedUntilCleared) {
  backward(1, 2);
  backward(10, 20);
  expect(11, 22);
  gradients.flat().div_(2);
  expect(5.5, 11);
  backward(1, 1);
  expect(6.5, 12);
  gradients.clear();
  backward(3, 4);
  expect(3, 4);
  gradients.clear();
  expect(0, 0);
}

TEST_F(GradientsTest, KnowWhoWasReachedSinceTheLastStep) {
  gradients.flat();
  EXPECT_EQ(gradients.reached(), (std::vector<bool>{false, false, false}));
  a.sum().backward();
  gradients.flat();
  gradients.set_aside();
  (b.sum() * 0).backward();  // a gradient that is zero is one
  expect(0, 0);
  EXPECT_EQ(gradients.reached(), (std::vector<bool>{true, true, false}));
  gradients.clear();
  gradients.flat();
  EXPECT_EQ(gradients.reached(), (std::vector<bool>{false, false, false}));
}

TEST_F(GradientsTest, EachParameterBeginsWithItsOwnFirst) {
  a.sum().backward();
  expect(1, 0);
  backward(2, 3);
  expect(3, 3);
}

// A sum over replicas, of which this one had nothing to add, say.
TEST_F(GradientsTest, WhatIsWrittenIntoThemStays) {
  backward(1, 2);
  gradients.flat().add_(3);
  EXPECT_TRUE(at::equal(layout.slices(gradients.flat())[2], at::full({5}, 3.)));
  EXPECT_TRUE(at::equal(layout.slices(gradients.flat())[0], at::full({3}, 4.)));
}

TEST_F(GradientsTest, AreMovedAtOnce) {
  backward(1, 2);
  EXPECT_TRUE(a.grad().is_same(gradients.places()[0]));
  EXPECT_TRUE(b.grad().is_same(gradients.places()[1]));
}

// A hook of Python's has taken the place of ours, say.
TEST_F(GradientsTest, AreMovedLaterWhereNobodyCouldAtOnce) {
  torch::autograd::impl::set_post_acc_grad_hooks(a, nullptr);
  backward(1, 2);
  backward(1, 2);
  EXPECT_FALSE(a.grad().is_same(gradients.places()[0]));
  expect(2, 4);
  backward(1, 2);
  expect(3, 6);
}

TEST(Gradients, LeaveAParameterAsItWas) {
  at::Tensor a = torch::ones({3}, at::requires_grad());
  FlatLayout layout({a}, {"a"});
  auto first = std::make_unique<Gradients>(std::vector<at::Tensor>{a}, layout);
  auto second = std::make_unique<Gradients>(std::vector<at::Tensor>{a}, layout);
  first.reset();
  a.sum().backward();
  EXPECT_TRUE(a.grad().is_same(second->places()[0])) << "the later one has it";
  a.mutable_grad().reset();
  at::Tensor place = second->places()[0];
  second.reset();
  a.sum().backward();
  EXPECT_FALSE(a.grad().is_same(place));
}

TEST_F(GradientsTest, WhatCameLastTimeIsNotInFlatMemory) {
  unused.sum().backward();
  EXPECT_EQ(gradients.flat().sum().item<double>(), 5);
  gradients.clear();
  backward(1, 1);
  EXPECT_EQ(gradients.flat().sum().item<double>(), 7);
}

TEST_F(GradientsTest, AFirstMinusZeroStays) {
  gradients.flat();
  backward(-0.0, 1);
  gradients.flat();
  EXPECT_TRUE(at::signbit(gradients.places()[0]).all().item<bool>());
}

// The gradient of what comes in may be the same memory as a parameter's, and waits there until it is sent.
TEST_F(GradientsTest, WhatOthersLookAtIsNotChanged) {
  at::Tensor arrived = at::full({4}, 5.0);
  std::vector<at::Tensor> waiting;
  for (int i = 0; i < 3; ++i) {
    at::Tensor x = torch::ones({2, 2}, at::requires_grad()) * 1;
    x.register_hook([&](const at::Tensor& gradient) { waiting.push_back(gradient); });
    (x.view({4}) + b.view({4})).backward(arrived);
  }
  EXPECT_TRUE(at::equal(arrived, at::full({4}, 5.0))) << arrived;
  for (const at::Tensor& one : waiting) EXPECT_TRUE(at::equal(one, at::full({2, 2}, 5.0))) << one;
  EXPECT_TRUE(at::equal(layout.slices(gradients.flat())[1], at::full({2, 2}, 15.0)));
}

TEST_F(GradientsTest, SparseOnesBecomeDense) {
  at::Tensor table = torch::ones({4, 2}, at::requires_grad());
  FlatLayout alone({table}, {"table"});
  Gradients of_table({table}, alone);
  for (int i = 0; i < 2; ++i) {
    torch::embedding(table, torch::tensor({1, 3, 3}), -1, false, /*sparse=*/true).sum().backward();
  }
  of_table.flat().div_(2);
  EXPECT_TRUE(at::equal(of_table.places()[0], torch::tensor({{0.F, 0.F}, {1.F, 1.F}, {0.F, 0.F}, {2.F, 2.F}})));
}

}  // namespace
}  // namespace ddip::pipeline
