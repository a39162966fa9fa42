#include "ddip/data_parallel/compress/residuals.h"

namespace ddip::data_parallel {

at::Tensor Residuals::with_rest(const Piece& piece) const {
  at::Tensor sum = piece.gradient.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  auto rest = kept_.find(piece.parameter);
  // A parameter that was replaced by another of the same number has no use for the rest of the old one.
  if (rest != kept_.end() && rest->second.sizes() == sum.sizes() && rest->second.device() == sum.device())
    sum.add_(rest->second);
  return sum;
}

void Residuals::commit() {
  for (auto& [parameter, rest] : pending_) kept_[parameter] = std::move(rest);
  pending_.clear();
}

at::Tensor Residuals::of(size_t parameter) const {
  auto rest = kept_.find(parameter);
  return rest == kept_.end() ? at::Tensor() : rest->second;
}

// A sum of absolute values is finite only if every value is (a sum that overflows is no gradient to keep either).
bool all_finite(const at::Tensor& tensor) { return std::isfinite(tensor.abs().sum(at::kDouble).item<double>()); }

}  // namespace ddip::data_parallel
