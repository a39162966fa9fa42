#include "ddip/pipeline/layer_cost.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include <chrono>
#include <limits>

#include "ddip/base/error.h"
#include "ddip/pipeline/kept_buffers.h"
#include "ddip/pipeline/random.h"

namespace ddip::pipeline {
namespace {

at::Device device_of(const Part& part) {
  if (part.module) {
    for (const auto& tensors : {part.module->parameters(), part.module->buffers()}) {
      if (!tensors.empty()) return tensors.front().device();
    }
  }
  return at::kCPU;
}

// As long as it lives: what is done then leaves no trace in buffers and random numbers.
struct Untouched {
  Untouched(const Part& part, at::Device device)
      : buffers(part.module ? part.module->buffers() : std::vector<at::Tensor>()), numbers(0, device) {}
  KeptBuffers buffers;
  OwnRandomNumbers numbers;
};

// As it would come over a link: no graph behind it. `wanted`: those whose gradients would go back.
Value arrived(const Value& value, std::vector<at::Tensor>& wanted) {
  return with_tensors(value, [&](const at::Tensor& tensor) {
    at::Tensor fresh = tensor.detach().clone();
    if (!at::isFloatingType(fresh.scalar_type()) && !at::isComplexType(fresh.scalar_type())) return fresh;
    fresh.requires_grad_();
    wanted.push_back(fresh);
    return fresh.clone();  // no leaf: the layer may change it in place
  });
}

}  // namespace

LayerCost::LayerCost(const Part& part, std::string name, std::vector<Value> inputs, size_t outgoing)
    : part_(part),
      name_(std::move(name)),
      inputs_(std::move(inputs)),
      outgoing_(outgoing),
      device_(device_of(part)),
      forward_(std::numeric_limits<double>::infinity()),
      backward_(forward_) {
  at::NoGradGuard quiet;
  const Untouched untouched(part_, device_);
  std::vector<Value> given;
  for (const Value& input : inputs_) {
    given.push_back(with_tensors(to_device(input, device_), [](const at::Tensor& one) { return one.clone(); }));
  }
  try {
    outputs_ = run_part(part_, given, outgoing_);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw ConfigError(
        fmt::format("{} cannot run with {}: {}", name_, describe(inputs_.front()), text.substr(0, text.find('\n'))));
  }
}

double LayerCost::now() const {
  if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void LayerCost::measure() {
  at::AutoGradMode with_graph(true);
  const Untouched untouched(part_, device_);
  std::vector<at::Tensor> wanted, made;
  std::vector<Value> given;
  for (const Value& input : inputs_) given.push_back(arrived(to_device(input, device_), wanted));
  for (const auto& [name, parameter] : trained_in(part_)) wanted.push_back(parameter);
  const double begin = now();
  const std::vector<Value> outputs = run_part(part_, given, outgoing_);
  const double middle = now();
  std::vector<at::Tensor> ones;
  for (const Value& output : outputs) {
    for (const at::Tensor& tensor : tensors_of(output)) {
      if (!tensor.requires_grad()) continue;
      made.push_back(tensor);
      ones.push_back(at::ones_like(tensor));
    }
  }
  const double turn = now();
  if (!made.empty() && !wanted.empty())
    torch::autograd::grad(made, wanted, ones, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  forward_ = std::min(forward_, middle - begin);
  backward_ = std::min(backward_, now() - turn);
}

uint64_t LayerCost::parameter_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : parameters_of(part_)) bytes += tensor.nbytes();
  return bytes;
}

uint64_t bytes_of(const Value& value) {
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors_of(value)) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace ddip::pipeline
