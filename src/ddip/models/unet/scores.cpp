#include "ddip/models/unet/scores.h"

#include <fmt/format.h>

#include <limits>

#include "ddip/base/error.h"

namespace ddip::models::unet {

Scores::Scores(int64_t classes) : classes_(classes), counts_(at::zeros({2, classes, classes}, at::kLong)) {}

void Scores::add(const at::Tensor& predicted, const at::Tensor& labels, const at::Tensor& lit) {
  for (const at::Tensor* given : {&predicted, &labels}) {
    if (given->numel() > 0 && given->max().item<int64_t>() >= classes_)
      throw ConfigError(
          fmt::format("a pixel of class {}; expected 0 to {}", given->max().item<int64_t>(), classes_ - 1));
  }
  const at::Tensor places = (labels.to(at::kLong) * classes_ + predicted.to(at::kLong)).flatten();
  const at::Tensor among_lit = places.masked_select(lit.flatten());
  const int64_t cells = classes_ * classes_;
  const at::Tensor counted = at::stack({at::bincount(places, {}, cells), at::bincount(among_lit, {}, cells)});
  counts_ += counted.view({2, classes_, classes_}).to(at::kCPU);
}

double Scores::accuracy(int64_t plane) const {
  const at::Tensor counts = counts_[plane];
  const auto all = counts.sum().item<int64_t>();
  return all == 0 ? std::numeric_limits<double>::quiet_NaN()
                  : static_cast<double>(counts.trace().item<int64_t>()) / static_cast<double>(all);
}

double Scores::iou(int64_t label) const {
  const at::Tensor counts = counts_[0];
  const auto both = counts[label][label].item<int64_t>();
  const auto either = counts[label].sum().item<int64_t>() + counts.select(1, label).sum().item<int64_t>() - both;
  return either == 0 ? 1 : static_cast<double>(both) / static_cast<double>(either);
}

}  // namespace ddip::models::unet
