// Tensors in checkpoints: their bytes, and back.
#pragma once

#include <map>
#include <utility>

#include "ddip/checkpoint/safetensors_file.h"
#include "ddip/tensors/torch.h"

namespace ddip::tensors {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Copies on the CPU, contiguous, that own what NamedBytes points to.
class TensorBytes {
 public:
  explicit TensorBytes(const NamedTensors& tensors);
  const std::vector<checkpoint::NamedBytes>& named() const { return named_; }

 private:
  std::vector<at::Tensor> kept_;
  std::vector<checkpoint::NamedBytes> named_;
};

// What the file has, on the CPU. Throws ConfigError for a type that torch has none for.
std::map<std::string, at::Tensor> read_tensors(const checkpoint::SafetensorsFile& file);

// Throws what load_tensors would, and changes nothing.
void require_fit(const checkpoint::SafetensorsFile& file, const NamedTensors& tensors);

// Fills `tensors` with the file's. All names, types and shapes are compared first; a ConfigError lists what is missing,
// unexpected or different, and nothing was changed.
void load_tensors(const checkpoint::SafetensorsFile& file, const NamedTensors& tensors);

}  // namespace ddip::tensors
