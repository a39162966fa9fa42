#include "ddip/models/unet/load.h"

#include "ddip/tensors/tensor_bytes.h"

namespace ddip::models::unet {

Loaded load_best(RunFolder& folder) {
  const checkpoint::Manifest manifest = folder.best();
  const checkpoint::SafetensorsFile file = folder.store().open(manifest, "model");
  int64_t channels = 1;
  for (const checkpoint::TensorEntry& entry : file.header().tensors) {
    if (entry.name == "down.0.conv1.weight" && entry.shape.size() == 4) channels = static_cast<int64_t>(entry.shape[1]);
  }
  const Settings& settings = folder.settings();
  auto network = std::make_shared<Network>(NetworkOptions{channels, kClasses, settings.width, settings.depth});
  tensors::NamedTensors tensors;
  for (const auto& entry : network->named_parameters()) tensors.emplace_back(entry.key(), entry.value());
  for (const auto& entry : network->named_buffers()) tensors.emplace_back(entry.key(), entry.value());
  tensors::load_tensors(file, tensors);
  return {network, manifest.step};
}

}  // namespace ddip::models::unet
