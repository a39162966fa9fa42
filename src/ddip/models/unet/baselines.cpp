#include "ddip/models/unet/baselines.h"

#include "ddip/models/adam.h"
#include "ddip/models/event_tensors.h"
#include "ddip/models/unet/device.h"
#include "ddip/models/unet/loss.h"
#include "ddip/tensors/tensor_bytes.h"

namespace ddip::models::unet {
namespace {

constexpr uint64_t kEvents = 128;  // that is enough for so little to learn
constexpr uint64_t kBatch = 8;
constexpr int64_t kReach = 5;  // pixels that the one layer sees, each way
constexpr int kEpochs = 4;

// Of all thresholds and both ways round, the one that is right most often. `energies` and `labels`: of lit pixels.
std::tuple<double, int64_t, int64_t> best_threshold(const at::Tensor& energies, const at::Tensor& labels) {
  const at::Tensor order = energies.argsort();
  const at::Tensor sorted = labels.index_select(0, order);
  const at::Tensor showers = at::cumsum(sorted == 1, 0), tracks = at::cumsum(sorted == 2, 0);
  const at::Tensor all_showers = showers[-1], all_tracks = tracks[-1];
  const at::Tensor track_above = showers + (all_tracks - tracks), shower_above = tracks + (all_showers - showers);
  const bool up = track_above.max().item<int64_t>() >= shower_above.max().item<int64_t>();
  const auto place = (up ? track_above : shower_above).argmax().item<int64_t>();
  const double threshold = energies.index_select(0, order)[place].item<double>();
  return {threshold, up ? 2 : 1, up ? 1 : 2};
}

}  // namespace

Baselines Baselines::learn(const std::shared_ptr<const data::EventSet>& events, int64_t classes, uint64_t seed) {
  data::LoaderOptions options;
  options.sampling = {.batch = kBatch, .seed = seed};
  options.classes = static_cast<int>(classes);
  data::Loader loader(data::range_of(events, 0, std::min(kEvents, events->shape().events)), options);
  std::vector<at::Tensor> energies, labels;
  loader.begin_epoch(0);
  while (auto batch = next_tensors(loader)) {
    const at::Tensor lit = batch->images.select(1, 0) > 0;
    energies.push_back(batch->images.select(1, 0).masked_select(lit));
    labels.push_back(batch->labels.masked_select(lit).to(at::kLong));
  }
  Baselines learned;
  const at::Tensor all_energies = at::cat(energies), all_labels = at::cat(labels);
  learned.majority_ = at::zeros({}, at::kLong);
  learned.threshold_ = at::zeros({});
  learned.above_ = at::full({}, 2, at::kLong);
  learned.below_ = at::full({}, 1, at::kLong);
  if (all_labels.numel() > 0) {
    learned.majority_ = at::bincount(all_labels, {}, classes).argmax();
    const auto [threshold, above, below] = best_threshold(all_energies, all_labels);
    learned.threshold_.fill_(threshold);
    learned.above_.fill_(above);
    learned.below_.fill_(below);
  }
  const int64_t side = 2 * kReach + 1;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  learned.weight_ = at::empty({classes, static_cast<int64_t>(events->shape().channels), side, side})
                        .normal_(0, 0.05, generator)
                        .requires_grad_(true);
  learned.bias_ = at::zeros({classes}).requires_grad_(true);
  Adam adam({learned.weight_, learned.bias_});
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    loader.begin_epoch(epoch);
    while (auto batch = next_tensors(loader)) {
      adam.zero_gradients();
      const at::Tensor logits =
          at::conv2d(prepared(batch->images, at::kCPU), learned.weight_, learned.bias_, 1, kReach);
      segmentation_loss(logits, batch->labels).backward();
      adam.step(0.01);
    }
  }
  learned.weight_ = learned.weight_.detach();
  learned.bias_ = learned.bias_.detach();
  return learned;
}

std::map<std::string, at::Tensor> Baselines::predict(const at::Tensor& images) const {
  const at::Tensor energy = images.select(1, 0), lit = energy > 0, none = at::zeros({}, at::kLong);
  const at::Tensor layer = at::conv2d(prepared(images, at::kCPU), weight_, bias_, 1, kReach).argmax(1);
  return {{"threshold", at::where(lit, at::where(energy > threshold_, above_, below_), none)},
          {"majority class", at::where(lit, majority_, none)},
          {"one layer", layer}};
}

void Baselines::save(const std::filesystem::path& path) const {
  checkpoint::write_safetensors(path, tensors::TensorBytes({{"threshold", threshold_},
                                                            {"above", above_},
                                                            {"below", below_},
                                                            {"majority", majority_},
                                                            {"layer.weight", weight_},
                                                            {"layer.bias", bias_}})
                                          .named());
}

Baselines Baselines::load(const std::filesystem::path& path) {
  const checkpoint::SafetensorsFile file(path);
  Baselines loaded;
  auto shape = [&](const std::string& name) {
    for (const checkpoint::TensorEntry& entry : file.header().tensors) {
      if (entry.name == name) return std::vector<int64_t>(entry.shape.begin(), entry.shape.end());
    }
    return std::vector<int64_t>{0};
  };
  loaded.threshold_ = at::zeros({});
  for (at::Tensor* number : {&loaded.above_, &loaded.below_, &loaded.majority_}) *number = at::zeros({}, at::kLong);
  loaded.weight_ = at::zeros(shape("layer.weight"));
  loaded.bias_ = at::zeros(shape("layer.bias"));
  tensors::load_tensors(file, {{"threshold", loaded.threshold_},
                               {"above", loaded.above_},
                               {"below", loaded.below_},
                               {"majority", loaded.majority_},
                               {"layer.weight", loaded.weight_},
                               {"layer.bias", loaded.bias_}});
  return loaded;
}

}  // namespace ddip::models::unet
