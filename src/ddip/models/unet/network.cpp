#include "ddip/models/unet/network.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "ddip/base/error.h"

namespace ddip::models::unet {
namespace {

using Kind = TensorSpec::Kind;

constexpr double kMomentum = 0.1;
constexpr double kEpsilon = 1e-5;

const NetworkOptions& checked(const NetworkOptions& options) {
  auto within = [](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
      throw ConfigError(fmt::format("a U-Net with {} {}: expected {} to {}", name, value, least, most));
  };
  within("channels", options.channels, 1, 1024);
  within("classes", options.classes, 2, 256);
  within("width", options.width, 1, 1024);
  within("depth", options.depth, 1, 8);
  return options;
}

// Calls convolution(name, shape), norm(name, channels) and bias(name, channels) for everything there is, in forward's
// order.
template <typename Convolution, typename Norm, typename Bias>
void visit(const NetworkOptions& options, const Convolution& convolution, const Norm& norm, const Bias& bias) {
  auto level = [&](const std::string& name, int64_t in, int64_t out) {
    convolution(name + ".conv1", {out, in, 3, 3});
    norm(name + ".norm1", out);
    convolution(name + ".conv2", {out, out, 3, 3});
    norm(name + ".norm2", out);
  };
  auto channels = [&](int64_t depth) { return options.width << depth; };
  for (int64_t depth = 0; depth < options.depth; ++depth)
    level(fmt::format("down.{}", depth), depth == 0 ? options.channels : channels(depth - 1), channels(depth));
  level("bridge", channels(options.depth - 1), channels(options.depth));
  for (int64_t depth = options.depth - 1; depth >= 0; --depth) {
    const std::string name = fmt::format("up.{}", options.depth - 1 - depth);
    convolution(name + ".up", {channels(depth + 1), channels(depth), 2, 2});
    bias(name + ".up", channels(depth));
    level(name, channels(depth + 1), channels(depth));
  }
  convolution("head", {options.classes, options.width, 1, 1});
  bias("head", options.classes);
}

// Hands out tensors one after the other.
class Next {
 public:
  explicit Next(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {}
  const at::Tensor& operator()() { return tensors_.at(at_++); }

 private:
  const std::vector<at::Tensor>& tensors_;
  size_t at_ = 0;
};

class Pass {
 public:
  Pass(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& buffers, bool training)
      : parameter_(parameters), buffer_(buffers), training_(training) {}

  at::Tensor level(const at::Tensor& images) { return half_level(half_level(images)); }

  at::Tensor up(const at::Tensor& images) {
    const at::Tensor &weight = parameter_(), &bias = parameter_();
    return at::conv_transpose2d(images, weight, bias, /*stride=*/2);
  }

  at::Tensor head(const at::Tensor& images) {
    const at::Tensor &weight = parameter_(), &bias = parameter_();
    return at::conv2d(images, weight, bias);
  }

 private:
  at::Tensor half_level(const at::Tensor& images) {
    const at::Tensor& convolution = parameter_();
    const at::Tensor summed = at::conv2d(images, convolution, {}, 1, 1);
    const at::Tensor &weight = parameter_(), &bias = parameter_();
    const at::Tensor &mean = buffer_(), &variance = buffer_(), &count = buffer_();
    if (training_) at::Tensor(count).add_(1);
    at::Tensor normed =
        at::batch_norm(summed, weight, bias, mean, variance, training_, kMomentum, kEpsilon, /*cudnn_enabled=*/true);
    return normed.relu_();
  }

  Next parameter_;
  Next buffer_;
  const bool training_;
};

// The module at a dotted path below `root`; made where it is missing.
torch::nn::Module& child(torch::nn::Module& root, const std::string& path) {
  torch::nn::Module* at = &root;
  size_t begin = 0;
  for (size_t dot = path.find('.'); dot != std::string::npos; begin = dot + 1, dot = path.find('.', begin)) {
    const std::string name = path.substr(begin, dot - begin);
    const auto children = at->named_children();
    const auto* found = children.find(name);
    at = found ? found->get() : at->register_module(name, std::make_shared<torch::nn::Module>()).get();
  }
  return *at;
}

at::Tensor begin(const TensorSpec& spec, at::Generator& generator) {
  switch (spec.kind) {
    case Kind::one: return at::ones(spec.shape);
    case Kind::zero: return at::zeros(spec.shape);
    case Kind::count: return at::zeros(spec.shape, at::kLong);
    case Kind::convolution: break;
  }
  // For ReLU behind it (He et al.): the values of a level have the spread of those before.
  double inputs = 1;
  for (size_t axis = 1; axis < spec.shape.size(); ++axis) inputs *= static_cast<double>(spec.shape[axis]);
  return at::empty(spec.shape).normal_(0, std::sqrt(2 / inputs), generator);
}

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

}  // namespace

std::vector<TensorSpec> parameter_specs(const NetworkOptions& options) {
  std::vector<TensorSpec> specs;
  visit(
      checked(options),
      [&](const std::string& name, std::vector<int64_t> shape) {
        specs.push_back({name + ".weight", std::move(shape), Kind::convolution});
      },
      [&](const std::string& name, int64_t channels) {
        specs.push_back({name + ".weight", {channels}, Kind::one});
        specs.push_back({name + ".bias", {channels}, Kind::zero});
      },
      [&](const std::string& name, int64_t channels) { specs.push_back({name + ".bias", {channels}, Kind::zero}); });
  return specs;
}

std::vector<TensorSpec> buffer_specs(const NetworkOptions& options) {
  std::vector<TensorSpec> specs;
  visit(
      checked(options), [](const std::string&, const std::vector<int64_t>&) {},
      [&](const std::string& name, int64_t channels) {
        specs.push_back({name + ".running_mean", {channels}, Kind::zero});
        specs.push_back({name + ".running_var", {channels}, Kind::one});
        specs.push_back({name + ".num_batches_tracked", {}, Kind::count});
      },
      [](const std::string&, int64_t) {});
  return specs;
}

at::Tensor forward(const NetworkOptions& options, const at::Tensor& images, const std::vector<at::Tensor>& parameters,
                   const std::vector<at::Tensor>& buffers, bool training) {
  if (images.dim() != 4 || images.size(1) != options.channels)
    throw ConfigError(fmt::format("a U-Net of {} channels was given a tensor of shape ({}); expected (N, {}, H, W)",
                                  options.channels, fmt::join(images.sizes(), ", "), options.channels));
  const int64_t height = images.size(2), width = images.size(3), step = int64_t{1} << options.depth;
  const int64_t below = (step - height % step) % step, right = (step - width % step) % step;
  at::Tensor now = below + right == 0 ? images : at::constant_pad_nd(images, {0, right, 0, below});
  Pass pass(parameters, buffers, training);
  std::vector<at::Tensor> mirrors;
  for (int64_t depth = 0; depth < options.depth; ++depth) {
    mirrors.push_back(pass.level(now));
    now = at::max_pool2d(mirrors.back(), 2);
  }
  now = pass.level(now);
  for (; !mirrors.empty(); mirrors.pop_back()) now = pass.level(at::cat({mirrors.back(), pass.up(now)}, 1));
  now = pass.head(now);
  return below + right == 0 ? now : now.slice(2, 0, height).slice(3, 0, width);
}

Network::Network(const NetworkOptions& options, uint64_t seed) : options_(checked(options)) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const TensorSpec& spec : parameter_specs(options_)) {
    parameters_in_order_.push_back(begin(spec, generator));
    child(*this, spec.name).register_parameter(last_name(spec.name), parameters_in_order_.back().requires_grad_(true));
  }
  for (const TensorSpec& spec : buffer_specs(options_)) {
    buffers_in_order_.push_back(begin(spec, generator));
    child(*this, spec.name).register_buffer(last_name(spec.name), buffers_in_order_.back());
  }
}

void Network::use_channels_last() {
  const at::NoGradGuard no_gradients;
  for (at::Tensor& parameter : parameters_in_order_) {
    if (parameter.dim() != 4) continue;
    // Not contiguous(): it leaves a weight of one channel as it is, and the first convolution then works the other way.
    parameter.set_data(at::empty_like(parameter, parameter.options(), at::MemoryFormat::ChannelsLast).copy_(parameter));
  }
}

at::Tensor Network::forward(const at::Tensor& images) {
  return unet::forward(options_, images, parameters_in_order_, buffers_in_order_, is_training());
}

}  // namespace ddip::models::unet
