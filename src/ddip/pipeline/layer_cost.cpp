#include "ddip/pipeline/layer_cost.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "ddip/base/error.h"
#include "ddip/pipeline/allocated.h"
#include "ddip/pipeline/kept_buffers.h"
#include "ddip/pipeline/random.h"

namespace ddip::pipeline {
namespace {

constexpr int kTimes = 3;

at::Device device_of(const Part& part, at::Device elsewhere) {
  if (part.module) {
    for (const auto& tensors : {part.module->parameters(), part.module->buffers()}) {
      if (!tensors.empty()) return tensors.front().device();
    }
  }
  return elsewhere;
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// As long as it lives: what is done then leaves no trace in buffers and random numbers.
struct Untouched {
  Untouched(const Part& part, at::Device device)
      : buffers(part.module ? part.module->buffers() : std::vector<at::Tensor>()), numbers(0, device) {}
  KeptBuffers buffers;
  OwnRandomNumbers numbers;
};

bool has_gradients(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

}  // namespace

LayerCost::LayerCost(const Part& part, Place place, std::vector<Value> inputs)
    : part_(part),
      place_(std::move(place)),
      inputs_(std::move(inputs)),
      device_(device_of(part, place_.elsewhere)),
      forward_(std::numeric_limits<double>::infinity()),
      backward_(forward_) {
  at::NoGradGuard quiet;
  const Untouched untouched(part_, device_);
  std::vector<Value> given;
  for (const Value& input : inputs_)
    given.push_back(with_tensors(to_device(input, device_), [](const at::Tensor& one) { return one.clone(); }));
  try {
    outputs_ = run(given);
  } catch (const std::exception& error) {
    std::vector<std::string> came;
    for (const Value& input : inputs_) came.push_back(describe(input));
    throw ConfigError(
        fmt::format("{} cannot run with {}: {}", place_.name, fmt::join(came, " and "), first_line(error)));
  }
  if (place_.outgoing > 1 && outputs_.size() != place_.outgoing)
    throw ConfigError(
        fmt::format("{} gave {} values for {} later stages", place_.name, outputs_.size(), place_.outgoing));
  if (part_.auxiliary_losses) part_.auxiliary_losses();  // it keeps them until it is asked
}

std::vector<Value> LayerCost::run(const std::vector<Value>& given) const {
  return run_part(part_, given, place_.outgoing);
}

double LayerCost::now() const {
  if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename Work>
void LayerCost::explained(const char* what, Work work) const {
  try {
    work();
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("{} cannot run {}: {}", place_.name, what, first_line(error)));
  }
}

void LayerCost::measure() {
  explained("backward", [&] { run_both_ways(); });
}

std::vector<Value> LayerCost::fresh_inputs() const {
  std::vector<Value> leaves;
  for (const Value& input : inputs_) {
    leaves.push_back(with_tensors(to_device(input, device_), [&](const at::Tensor& tensor) {
      at::Tensor fresh = tensor.detach().clone();
      return place_.gives_gradients && has_gradients(fresh) ? fresh.requires_grad_() : fresh;
    }));
  }
  return leaves;
}

std::vector<Value> LayerCost::copied(const std::vector<Value>& leaves) const {
  std::vector<Value> copies;
  for (const Value& leaf : leaves)
    copies.push_back(with_tensors(leaf, [](const at::Tensor& tensor) { return tensor.clone(); }));
  return copies;
}

std::vector<at::Tensor> LayerCost::outputs_with_graph(const std::vector<Value>& outputs) const {
  std::vector<at::Tensor> found;
  for (const Value& output : outputs) std::ranges::copy(tensors_of(output), std::back_inserter(found));
  if (part_.auxiliary_losses) std::ranges::copy(part_.auxiliary_losses(), std::back_inserter(found));
  std::erase_if(found, [](const at::Tensor& tensor) { return !tensor.requires_grad(); });
  return found;
}

void LayerCost::run_both_ways() {
  at::AutoGradMode with_graph(true);
  const Untouched untouched(part_, device_);
  const std::vector<Value> leaves = fresh_inputs(), given = copied(leaves);
  std::vector<at::Tensor> wanted, ones;
  for (const Value& leaf : leaves) std::ranges::copy(tensors_of(leaf), std::back_inserter(wanted));
  std::erase_if(wanted, [](const at::Tensor& tensor) { return !tensor.requires_grad(); });
  for (const auto& [name, parameter] : trained_in(part_)) wanted.push_back(parameter);
  const double begin = now();
  const std::vector<Value> outputs = run(given);
  const double middle = now();
  const std::vector<at::Tensor> made = outputs_with_graph(outputs);
  for (const at::Tensor& tensor : made) ones.push_back(at::ones_like(tensor));
  const double turn = now();
  if (!made.empty() && !wanted.empty())
    torch::autograd::grad(made, wanted, ones, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  forward_ = std::min(forward_, middle - begin);
  backward_ = std::min(backward_, now() - turn);
}

uint64_t LayerCost::count_activations() const {
  at::AutoGradMode with_graph(true);
  const Untouched untouched(part_, device_);
  const std::vector<Value> leaves = fresh_inputs();
  uint64_t bytes = 0;
  explained("forward", [&] {
    std::vector<torch::autograd::Edge> graph;
    const Allocated allocated;
    // Inputs and outputs count only as far as the graph keeps them: the copies are gone behind this line.
    for (const at::Tensor& made : outputs_with_graph(run(copied(leaves))))
      graph.push_back(torch::autograd::impl::gradient_edge(made));
    bytes = allocated.bytes();
  });
  return bytes;
}

uint64_t bytes_of(const Value& value) {
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors_of(value)) bytes += tensor.nbytes();
  return bytes;
}

// Round by round: what disturbs the machine for a moment disturbs no layer each time.
void measure(std::vector<LayerCost>& layers) {
  for (int time = 0; time <= kTimes; ++time) {
    for (LayerCost& layer : layers) layer.measure();
  }
}

at::Device device_of(const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    if (!part.module) continue;
    for (const auto& tensors : {part.module->parameters(), part.module->buffers()}) {
      if (!tensors.empty()) return tensors.front().device();
    }
  }
  return at::kCPU;
}

}  // namespace ddip::pipeline
