// A network on events it may never have seen.
#pragma once

#include <functional>

#include "ddip/data/loader.h"
#include "ddip/models/unet/network.h"
#include "ddip/models/unet/scores.h"

namespace ddip::models::unet {

struct Evaluation {
  Scores scores;
  double loss_sum = 0;  // over samples
  int64_t samples = 0;

  explicit Evaluation(int64_t classes) : scores(classes) {}
  double loss() const { return samples == 0 ? 0 : loss_sum / static_cast<double>(samples); }
};

struct Predicted {
  const std::vector<uint64_t>& samples;
  const at::Tensor& images;   // energies, on the CPU
  const at::Tensor& labels;   // on the CPU
  const at::Tensor& classes;  // uint8, on the CPU
};

// The loader's epoch 0, of this rank. `each`, if given, sees every batch. The network is in evaluation mode meanwhile.
Evaluation evaluate(Network& network, data::Loader& loader, at::Device device, const std::string& precision,
                    const std::function<void(const Predicted&)>& each = {});

}  // namespace ddip::models::unet
