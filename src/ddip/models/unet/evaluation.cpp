#include "ddip/models/unet/evaluation.h"

#include "ddip/models/event_tensors.h"
#include "ddip/models/unet/device.h"
#include "ddip/models/unet/loss.h"

namespace ddip::models::unet {

Evaluation evaluate(Network& network, data::Loader& loader, at::Device device, const std::string& precision,
                    const std::function<void(const Predicted&)>& each) {
  const at::NoGradGuard no_gradients;
  const bool was_training = network.is_training();
  network.eval();
  Evaluation evaluation(network.options().classes);
  loader.begin_epoch(0);
  while (auto batch = next_tensors(loader)) {
    const Precision computed_in(precision, device);
    const at::Tensor labels = batch->labels.to(device);
    const at::Tensor logits = network.forward(prepared(batch->images, device));
    const at::Tensor predicted = logits.argmax(1);
    const auto count = static_cast<int64_t>(batch->samples.size());
    evaluation.loss_sum += segmentation_loss(logits, labels).item<double>() * static_cast<double>(count);
    evaluation.samples += count;
    evaluation.scores.add(predicted, labels, batch->images.select(1, 0).to(device) > 0);
    if (each) each({batch->samples, batch->images, batch->labels, predicted.to(at::kByte).to(at::kCPU)});
  }
  network.train(was_training);
  return evaluation;
}

}  // namespace ddip::models::unet
