#include "ddip/pipeline/weights.h"

#include <fmt/format.h>

#include "ddip/base/check.h"
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

// Keeps its tensor alive as long as somebody looks at the memory.
at::DataPtr memory_of(const at::Tensor& flat) {
  auto forget = [](void* kept) { delete static_cast<at::Tensor*>(kept); };
  return {flat.mutable_data_ptr(), new at::Tensor(flat), forget, flat.device()};
}

}  // namespace

Weights::Weights(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names, bool apart)
    : like_(parameters) {
  at::NoGradGuard quiet;
  int64_t total = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (parameter.scalar_type() != parameters[0].scalar_type() || parameter.device() != parameters[0].device())
      throw ConfigError(fmt::format("the parameters {} and {} of one stage differ in type or device ({} and {})",
                                    names[0], names[i], c10::toString(parameters[0].scalar_type()),
                                    c10::toString(parameter.scalar_type())));
    begins_.push_back(total);
    total += padded(parameter.numel(), parameter.element_size());
  }
  auto options = parameters.empty() ? at::TensorOptions() : parameters[0].options();
  truth_ = at::zeros({total}, options.requires_grad(false));
  gradient_ = at::zeros({total}, options.requires_grad(false));
  std::vector<at::Tensor> trues = slices(truth_), gradients = slices(gradient_);
  for (size_t i = 0; i < parameters.size(); ++i) trues[i].copy_(parameters[i].detach());
  // Another storage, not another copy.
  seen_ = apart ? at::from_blob(truth_.mutable_data_ptr(), truth_.sizes(), truth_.options()) : truth_;
  if (apart) show_truth();
  std::vector<at::Tensor> seen = slices(seen_);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    parameter.set_data(seen[i]);
    parameter.mutable_grad() = gradients[i];
    at::Tensor master = trues[i].detach();
    master.set_requires_grad(true);
    master.mutable_grad() = gradients[i];
    masters_.push_back(master);
  }
}

std::vector<at::Tensor> Weights::slices(const at::Tensor& flat) const {
  std::vector<at::Tensor> found;
  for (size_t i = 0; i < like_.size(); ++i) {
    const at::Tensor& like = like_[i];
    // A dense layout stays as it is (channels-last); any other becomes a plain one.
    found.push_back(like.is_non_overlapping_and_dense() ? flat.as_strided(like.sizes(), like.strides(), begins_[i])
                                                        : flat.narrow(0, begins_[i], like.numel()).view(like.sizes()));
  }
  return found;
}

void Weights::show(const at::Tensor& flat) {
  if (shown_.defined() && shown_.is_same(flat)) return;
  if (!apart()) {
    DDIP_CHECK(flat.is_same(truth_), "other weights than the true ones are shown only where that was announced");
    return;
  }
  DDIP_CHECK(flat.is_contiguous() && flat.nbytes() == truth_.nbytes() && flat.device() == truth_.device(),
             "weights that are shown lie as the true ones do");
  seen_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(memory_of(flat));
  shown_ = flat;
}

}  // namespace ddip::pipeline
