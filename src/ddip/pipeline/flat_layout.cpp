#include "ddip/pipeline/flat_layout.h"

#include <fmt/format.h>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

// Each parameter begins where vector instructions like it, as it would by itself: some matrix kernels give other bits
// for memory that is aligned in another way, and a replay must give the same.
constexpr int64_t kAlignment = 64;

int64_t padded(int64_t elements, int64_t bytes_each) {
  int64_t step = kAlignment / bytes_each;
  return (elements + step - 1) / step * step;
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names)
    : like_(parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (parameter.scalar_type() != parameters[0].scalar_type() || parameter.device() != parameters[0].device())
      throw ConfigError(fmt::format("the parameters {} and {} of one stage differ in type or device ({} and {})",
                                    names[0], names[i], c10::toString(parameters[0].scalar_type()),
                                    c10::toString(parameter.scalar_type())));
    begins_.push_back(total_);
    total_ += padded(parameter.numel(), parameter.element_size());
  }
}

at::Tensor FlatLayout::zeros() const {
  auto options = like_.empty() ? at::TensorOptions() : like_[0].options();
  return at::zeros({total_}, options.requires_grad(false));
}

std::vector<at::Tensor> FlatLayout::slices(const at::Tensor& flat) const {
  std::vector<at::Tensor> found;
  for (size_t i = 0; i < like_.size(); ++i) {
    const at::Tensor& like = like_[i];
    // A dense layout stays as it is (channels-last); any other becomes a plain one.
    found.push_back(like.is_non_overlapping_and_dense() ? flat.as_strided(like.sizes(), like.strides(), begins_[i])
                                                        : flat.narrow(0, begins_[i], like.numel()).view(like.sizes()));
  }
  return found;
}

}  // namespace ddip::pipeline
