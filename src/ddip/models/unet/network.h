// The U-Net: levels of two 3×3 convolutions, each with batch norm and ReLU; halved by max-pooling on the way down,
// doubled by transposed convolutions on the way up, where each level also gets what its mirror had. Logits, one plane
// per class.
#pragma once

#include <torch/nn/module.h>

#include "ddip/tensors/torch.h"

namespace ddip::models::unet {

constexpr int64_t kClasses = 3;  // background, shower, track

struct NetworkOptions {
  int64_t channels = 1;
  int64_t classes = kClasses;
  int64_t width = 64;  // channels of the first level; each level has twice the one above
  int64_t depth = 4;   // levels beside the bridge

  bool operator==(const NetworkOptions&) const = default;
};

// What the network is made of, as PyTorch would name it: "down.0.conv1.weight". In the order in which forward uses it.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  enum class Kind { convolution, one, zero, count } kind;  // how it begins; `count` is batch norm's num_batches_tracked
};
std::vector<TensorSpec> parameter_specs(const NetworkOptions& options);
std::vector<TensorSpec> buffer_specs(const NetworkOptions& options);

// Logits (N, classes, H, W) of images (N, channels, H, W) of any size. `training`: batch norm uses the batch and notes
// it in `buffers`.
at::Tensor forward(const NetworkOptions& options, const at::Tensor& images, const std::vector<at::Tensor>& parameters,
                   const std::vector<at::Tensor>& buffers, bool training);

class Network : public torch::nn::Module {
 public:
  // Throws ConfigError for options that make no sense. The same seed gives the same weights.
  explicit Network(const NetworkOptions& options, uint64_t seed = 0);

  at::Tensor forward(const at::Tensor& images);

  // Weights laid out so that convolutions compute channels-last, which is faster. Before optimizers see them.
  void use_channels_last();

  const NetworkOptions& options() const { return options_; }

 private:
  NetworkOptions options_;
  std::vector<at::Tensor> parameters_in_order_;
  std::vector<at::Tensor> buffers_in_order_;
};

}  // namespace ddip::models::unet
