// What training makes small: cross-entropy, in which the many background pixels count little, plus one minus the Dice
// overlap of the other classes. Zero for a perfect prediction, and only there.
#pragma once

#include "ddip/tensors/torch.h"

namespace ddip::models::unet {

// `logits` (N, classes, H, W), `labels` uint8 (N, H, W) on the same device.
at::Tensor segmentation_loss(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace ddip::models::unet
