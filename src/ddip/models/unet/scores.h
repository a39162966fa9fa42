// How good predictions are, from counts that add up over batches and ranks.
#pragma once

#include <vector>

#include "ddip/tensors/torch.h"

namespace ddip::models::unet {

class Scores {
 public:
  explicit Scores(int64_t classes);

  // `predicted` and `labels` (N, H, W) of class numbers; `lit`: which pixels have energy.
  void add(const at::Tensor& predicted, const at::Tensor& labels, const at::Tensor& lit);

  // int64, to be added to those of the other ranks in place.
  at::Tensor& counts() { return counts_; }

  double pixel_accuracy() const { return accuracy(0); }    // NaN of no pixel
  double nonzero_accuracy() const { return accuracy(1); }  // of the pixels with energy: what counts
  double iou(int64_t label) const;                         // 1 where a class neither is nor was said
  int64_t classes() const { return classes_; }

 private:
  double accuracy(int64_t plane) const;

  int64_t classes_;
  at::Tensor counts_;  // (2, classes, classes): all pixels, those with energy; then label, predicted
};

}  // namespace ddip::models::unet
