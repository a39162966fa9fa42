#include "ddip/pipeline/weights.h"

#include <fmt/format.h>

#include "ddip/base/check.h"
#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

// Keeps its tensor alive as long as somebody looks at the memory.
at::DataPtr memory_of(const at::Tensor& flat) {
  auto forget = [](void* kept) { delete static_cast<at::Tensor*>(kept); };
  return {flat.mutable_data_ptr(), new at::Tensor(flat), forget, flat.device()};
}

}  // namespace

Weights::Weights(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names, bool apart)
    : names_(names), layout_(std::make_shared<FlatLayout>(parameters, names)), gradients_(parameters, *layout_) {
  at::NoGradGuard quiet;
  truth_ = layout_->zeros();
  std::vector<at::Tensor> trues = slices(truth_);
  for (size_t i = 0; i < parameters.size(); ++i) trues[i].copy_(parameters[i].detach());
  // Another storage, not another copy.
  seen_ = apart ? at::from_blob(truth_.mutable_data_ptr(), truth_.sizes(), truth_.options()) : truth_;
  if (apart) show_truth();
  std::vector<at::Tensor> seen = slices(seen_);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    parameter.set_data(seen[i]);
    at::Tensor master = trues[i].detach();
    master.set_requires_grad(true);
    master.mutable_grad() = gradients_.places()[i];
    masters_.push_back(master);
  }
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

std::vector<size_t> Weights::unreached() const {
  std::vector<size_t> found;
  for (size_t i = 0; i < masters_.size(); ++i) {
    if (!gradients_.reached()[i]) found.push_back(i);
  }
  return found;
}

void Weights::require_used() const {
  const std::vector<at::Tensor>& parameters = gradients_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].storage().is_alias_of(seen_.storage()))
      throw ConfigError(
          fmt::format("{:?} has got other memory since the pipeline was made (another pipeline of the same modules? "
                      ".to()?); make the pipeline anew",
                      names_[i]));
    if (!parameters[i].requires_grad())
      throw ConfigError(
          fmt::format("{:?} has been frozen since the pipeline was made; make the pipeline anew", names_[i]));
  }
}

}  // namespace ddip::pipeline
