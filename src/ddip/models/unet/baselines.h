// What anybody could do without a U-Net, to see what it is worth: the class of a lit pixel by its energy alone, always
// the same class, and a network of one layer. Learned from the same events.
#pragma once

#include <filesystem>
#include <map>
#include <memory>

#include "ddip/data/event_set.h"
#include "ddip/models/unet/scores.h"

namespace ddip::models::unet {

class Baselines {
 public:
  // From the first events of `events`.
  static Baselines learn(const std::shared_ptr<const data::EventSet>& events, int64_t classes, uint64_t seed);

  void save(const std::filesystem::path& path) const;
  static Baselines load(const std::filesystem::path& path);

  // Class numbers (N, H, W) for images (N, C, H, W) of energies, by name: "threshold", "majority class", "one layer".
  std::map<std::string, at::Tensor> predict(const at::Tensor& images) const;

 private:
  at::Tensor threshold_;  // energy from which a lit pixel is `above_`, below `below_`
  at::Tensor above_;
  at::Tensor below_;
  at::Tensor majority_;
  at::Tensor weight_;  // of the one layer
  at::Tensor bias_;
};

}  // namespace ddip::models::unet
