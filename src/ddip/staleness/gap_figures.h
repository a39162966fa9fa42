// How far the weights moved while a micro-batch was on its way, and whether a prediction came nearer to where they
// went. For logs, on sampled steps: each figure reads the tensors anew.
#pragma once

#include "ddip/tensors/torch.h"

namespace ddip::staleness {

struct GapFigures {
  double moved = 0;  // ‖w_B − w_F‖
  double error = 0;  // ‖ŵ − w_B‖ / ‖w_F − w_B‖: below 1 the prediction helps; 1 without one, 0 where nothing moved
};

// The newest true weights at the forward, the weights it used, the newest true weights at its backward.
GapFigures gap_figures(const at::Tensor& at_forward, const at::Tensor& used, const at::Tensor& at_backward);

// Between a stale gradient and the fresh one; 0 if either has no length.
double cosine(const at::Tensor& stale, const at::Tensor& fresh);

}  // namespace ddip::staleness
