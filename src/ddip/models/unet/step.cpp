#include "ddip/models/unet/step.h"

#include "ddip/models/unet/device.h"
#include "ddip/models/unet/loss.h"

namespace ddip::models::unet {

Step train_step(const std::function<at::Tensor(const at::Tensor&)>& forward, Adam& adam, const at::Tensor& images,
                const at::Tensor& labels, const std::string& precision, double learning_rate) {
  adam.zero_gradients();
  Step step;
  {
    const Precision computed_in(precision, images.device());
    step.logits = forward(images);
    step.loss = segmentation_loss(step.logits, labels);
  }
  step.loss.backward();
  step.skipped = !adam.has_gradients();
  if (!step.skipped) adam.step(learning_rate);
  return step;
}

}  // namespace ddip::models::unet
