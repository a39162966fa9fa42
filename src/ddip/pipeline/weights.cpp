#include "ddip/pipeline/weights.h"

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
  work_ = apart ? truth_.clone() : truth_;
  std::vector<at::Tensor> works = slices(work_);
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor parameter = parameters[i];
    parameter.set_data(works[i]);
    parameter.mutable_grad() = gradients[i];
    at::Tensor master = trues[i].detach();
    master.set_requires_grad(true);
    master.mutable_grad() = gradients[i];
    masters_.push_back(master);
  }
  label_ = 0;
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

void Weights::load_truth(int64_t version) { load(truth_, version); }

void Weights::load(const at::Tensor& weights, int64_t label) {
  if (!apart() || (label != kNothing && label_ == label)) return;
  at::NoGradGuard quiet;
  work_.copy_(weights);
  label_ = label;
}

at::Tensor& Weights::work(int64_t label) {
  label_ = label;
  return work_;
}

int64_t Weights::bytes() const { return static_cast<int64_t>(truth_.nbytes() * (apart() ? 3 : 2)); }

}  // namespace ddip::pipeline
