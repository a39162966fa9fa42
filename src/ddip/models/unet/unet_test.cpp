#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "ddip/base/error.h"
#include "ddip/models/unet/learning_rate.h"
#include "ddip/models/unet/loss.h"
#include "ddip/models/unet/network.h"
#include "ddip/models/unet/scores.h"
#include "ddip/models/unet/settings.h"
#include "ddip/models/unet/step.h"

namespace ddip::models::unet {
namespace {

at::Tensor logits_for(const at::Tensor& labels, double sure) {
  return at::one_hot(labels.to(at::kLong), 3).permute({0, 3, 1, 2}).to(at::kFloat) * sure;
}

TEST(Loss, a_perfect_prediction_is_the_optimum_and_no_other_is_as_good) {
  const at::Tensor labels = at::zeros({2, 8, 8}, at::kByte);
  labels[0].slice(0, 2, 4).fill_(1);
  labels[1].slice(1, 5, 8).fill_(2);
  EXPECT_LT(segmentation_loss(logits_for(labels, 60), labels).item<double>(), 1e-5);
  double before = 1e9;
  for (double sure : {0.0, 1.0, 3.0, 10.0}) {  // nearer to the truth is better
    const double loss = segmentation_loss(logits_for(labels, sure), labels).item<double>();
    EXPECT_LT(loss, before);
    before = loss;
  }
  at::Tensor wrong = labels.clone();
  wrong[0][2][0] = 2;  // one pixel of 128
  EXPECT_GT(segmentation_loss(logits_for(wrong, 60), labels).item<double>(), 0.01);
}

TEST(Loss, an_event_without_one_of_the_classes_has_a_finite_loss_and_gradient) {
  const at::Tensor labels = at::zeros({1, 8, 8}, at::kByte);
  at::Tensor logits = at::zeros({1, 3, 8, 8}).requires_grad_(true);
  const at::Tensor loss = segmentation_loss(logits, labels);
  loss.backward();
  EXPECT_TRUE(std::isfinite(loss.item<double>()));
  EXPECT_TRUE(logits.grad().isfinite().all().item<bool>());
}

TEST(Network, has_the_published_size_and_takes_images_of_any_size) {
  int64_t weights = 0;
  for (const TensorSpec& spec : parameter_specs({}))
    weights += at::IntArrayRef(spec.shape).empty() ? 1 : c10::multiply_integers(spec.shape);
  EXPECT_NEAR(static_cast<double>(weights), 31.0e6, 0.1e6);
  Network network({2, 3, 4, 3});
  EXPECT_EQ(network.forward(at::zeros({1, 2, 50, 37})).sizes(), (std::vector<int64_t>{1, 3, 50, 37}));
  EXPECT_THROW(network.forward(at::zeros({1, 1, 16, 16})), ConfigError);
  EXPECT_THROW(Network({1, 3, 0, 3}), ConfigError);
  EXPECT_THROW(Network({1, 3, 8, 9}), ConfigError);
}

TEST(Network, every_convolution_computes_channels_last_also_the_first_of_one_channel) {
  Network network({1, 3, 4, 2});
  const at::Tensor images = at::rand({2, 1, 16, 16});
  const at::Tensor before = network.forward(images);
  network.use_channels_last();
  for (const at::Tensor& parameter : network.parameters())
    if (parameter.dim() == 4) {
      EXPECT_EQ(parameter.suggest_memory_format(), at::MemoryFormat::ChannelsLast) << parameter.sizes();
    }
  const at::Tensor after = network.forward(images);
  EXPECT_TRUE(after.allclose(before, 1e-4, 1e-5));
  EXPECT_TRUE(after.is_contiguous(at::MemoryFormat::ChannelsLast) && !after.is_contiguous());
}

TEST(Network, logits_are_not_bounded) {
  Network network({1, 3, 4, 2});
  at::NoGradGuard no_gradients;
  for (const auto& entry : network.named_parameters()) {
    if (entry.key() == "head.weight") at::Tensor(entry.value()).mul_(1000);
  }
  EXPECT_GT(network.forward(at::rand({1, 1, 32, 32})).abs().max().item<double>(), 50);
}

TEST(Scores, count_what_a_person_would) {
  const at::Tensor labels = at::tensor({0, 0, 1, 1, 2, 2}).view({1, 2, 3});
  const at::Tensor said = at::tensor({0, 1, 1, 2, 2, 2}).view({1, 2, 3});
  const at::Tensor lit = at::tensor({0, 0, 1, 1, 1, 1}).view({1, 2, 3}) > 0;
  Scores scores(3);
  scores.add(said, labels, lit);
  EXPECT_DOUBLE_EQ(scores.pixel_accuracy(), 4.0 / 6);
  EXPECT_DOUBLE_EQ(scores.nonzero_accuracy(), 3.0 / 4);
  EXPECT_DOUBLE_EQ(scores.iou(0), 1.0 / 2);
  EXPECT_DOUBLE_EQ(scores.iou(1), 1.0 / 3);
  EXPECT_DOUBLE_EQ(scores.iou(2), 2.0 / 3);
  EXPECT_DOUBLE_EQ(Scores(3).iou(1), 1);
  EXPECT_TRUE(std::isnan(Scores(3).nonzero_accuracy())) << "of nothing nothing is right";
  EXPECT_THROW(scores.add(said + 3, labels, lit), ConfigError);
}

// As data parallel leaves it where a gradient was not finite on some rank.
TEST(Step, without_gradients_changes_nothing_and_says_so) {
  at::Tensor weight = at::ones({3}).requires_grad_(true);
  Adam adam({weight});
  const at::Tensor images = at::zeros({1, 1, 4, 4}), labels = at::zeros({1, 4, 4}, at::kByte);
  const auto dropped = [](const at::Tensor& x) { return at::zeros({1, 3, 4, 4}).requires_grad_(true) + x; };
  EXPECT_TRUE(train_step(dropped, adam, images, labels, "fp32", 0.1).skipped);
  EXPECT_TRUE(weight.equal(at::ones({3})));
  const auto kept = [&](const at::Tensor& x) {
    return weight.view({1, 3, 1, 1}) * at::arange(3).view({1, 3, 1, 1}) + x;
  };
  EXPECT_FALSE(train_step(kept, adam, images, labels, "fp32", 0.1).skipped);
  EXPECT_FALSE(weight.equal(at::ones({3})));
}

TEST(LearningRate, rises_then_falls_and_never_leaves_its_bounds) {
  double before = 0;
  for (int step = 1; step <= 1100; ++step) {
    const double rate = learning_rate(0.5, step / 1000.0);
    EXPECT_GT(rate, 0);
    EXPECT_LE(rate, 0.5);
    EXPECT_TRUE(step <= 50 ? rate > before : rate <= before) << step;
    before = rate;
  }
  EXPECT_DOUBLE_EQ(learning_rate(0.5, 0.05), 0.5);
  EXPECT_NEAR(learning_rate(0.5, 1), 0.005, 1e-9);
  EXPECT_NEAR(learning_rate(0.5, 1.2), 0.005, 1e-9);
}

TEST(Settings, survive_their_file_and_others_are_refused) {
  Settings settings;
  settings.data = "x y";
  settings.lr = 0.1;
  settings.seed = UINT64_MAX;
  settings.events = 45;
  EXPECT_EQ(Settings::from_json(settings.json()), settings);
  for (const char* bad : {"", "{}", "[]", R"({"data": 3})", R"({"data":"x","data":"y"})"})
    EXPECT_THROW(Settings::from_json(bad), ConfigError) << bad;
  for (const auto& [name, value] : std::map<std::string, std::string>{{"epochs", "-1"},
                                                                      {"batch", "0"},
                                                                      {"hold_out", "5"},
                                                                      {"lr", "0"},
                                                                      {"precision", "\"fp99\""},
                                                                      {"compress", "\"zip\""},
                                                                      {"device", "\"tpu\""},
                                                                      {"readers", "0"},
                                                                      {"depth", "9"}}) {
    nlohmann::json changed = nlohmann::json::parse(settings.json());
    changed[name] = nlohmann::json::parse(value);
    EXPECT_THROW(Settings::from_json(changed.dump()), ConfigError) << name;
  }
}

}  // namespace
}  // namespace ddip::models::unet
