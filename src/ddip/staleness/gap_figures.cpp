#include "ddip/staleness/gap_figures.h"

namespace ddip::staleness {
namespace {

double length_of(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2, std::nullopt, false, at::kDouble).item<double>();
}

}  // namespace

GapFigures gap_figures(const at::Tensor& at_forward, const at::Tensor& used, const at::Tensor& at_backward) {
  at::NoGradGuard no_grad;
  const double moved = length_of(at::sub(at_forward, at_backward));
  return {moved, moved == 0 ? 0 : length_of(at::sub(used, at_backward)) / moved};
}

double cosine(const at::Tensor& stale, const at::Tensor& fresh) {
  at::NoGradGuard no_grad;
  const double lengths = length_of(stale) * length_of(fresh);
  return lengths == 0 ? 0 : at::mul(stale, fresh).sum(at::kDouble).item<double>() / lengths;
}

}  // namespace ddip::staleness
