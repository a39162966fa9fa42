// One step of training: forward, loss, backward, Adam.
#pragma once

#include <functional>

#include "ddip/models/adam.h"

namespace ddip::models::unet {

struct Step {
  at::Tensor logits;
  at::Tensor loss;
  bool skipped = false;  // its gradients were dropped: one was not finite, on some rank
};

// `forward`: of the network, or of what wraps it. `images` as prepared() gives them, `labels` on the same device.
Step train_step(const std::function<at::Tensor(const at::Tensor&)>& forward, Adam& adam, const at::Tensor& images,
                const at::Tensor& labels, const std::string& precision, double learning_rate);

}  // namespace ddip::models::unet
