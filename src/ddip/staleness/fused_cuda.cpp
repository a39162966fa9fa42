#include "ddip/staleness/fused_cuda.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "ddip/base/error.h"
#include "ddip/tensors/cuda_kernels.h"

namespace ddip::staleness::cuda {
namespace {

struct OnDevice {
  std::unique_ptr<const tensors::CudaKernels> kernels;
  std::string obstacle;
};

// Made once for each device and never destroyed: what has been tried and refused is not tried again.
class Devices {
 public:
  const tensors::CudaKernels* kernels(at::Device device) {
    const std::scoped_lock lock(mutex_);
    const OnDevice& found = on(device);
    return found.obstacle.empty() ? found.kernels.get() : nullptr;
  }
  std::string obstacle(at::Device device) {
    const std::scoped_lock lock(mutex_);
    return on(device).obstacle;
  }
  void give_up(at::Device device, const std::string& why) {
    const std::scoped_lock lock(mutex_);
    on(device).obstacle = why;
  }

 private:
  OnDevice& on(at::Device device) {
    auto [place, is_new] = devices_.try_emplace(device.index());
    OnDevice& made = place->second;
    if (!is_new) return made;
    try {
      made.kernels = std::make_unique<const tensors::CudaKernels>(device, kernel_text(), kernel_names());
    } catch (const std::exception& error) {
      made.obstacle = error.what();
    }
    return made;
  }

  std::mutex mutex_;
  std::map<int, OnDevice> devices_;
};

Devices& devices() {
  static auto* all = new Devices;
  return *all;
}

const float* floats(const at::Tensor& tensor, const at::Tensor& out) {
  if (!tensor.defined()) return nullptr;
  if (tensor.device() != out.device() || !tensor.is_contiguous() || tensor.scalar_type() != at::kFloat ||
      tensor.numel() != out.numel())
    throw ConfigError("a stage's flat tensors are of one type, on one device and contiguous; one of these is not");
  return tensor.const_data_ptr<float>();
}

// out and the inputs come first in every kernel, then what is its own.
template <size_t count, typename... Arguments>
bool launch(const char* name, at::Tensor& out, const std::array<at::Tensor, count>& inputs, Arguments... arguments) {
  const tensors::CudaKernels* kernels = devices().kernels(out.device());
  if (!kernels) return false;
  float* to = out.mutable_data_ptr<float>();
  if (out.numel() == 0) return true;
  std::array<const float*, count + 1> pointers = {to};
  for (size_t index = 0; index < count; ++index) pointers[index + 1] = floats(inputs[index], out);
  const Range range = range_of(out.numel(), pointers);
  try {
    [&]<size_t... index>(std::index_sequence<index...>) {
      kernels->launch(name, std::max(range.fours, range.count - 4 * range.fours), to, range, pointers[index + 1]...,
                      arguments...);
    }(std::make_index_sequence<count>());
  } catch (const std::exception& error) {
    devices().give_up(out.device(), error.what());
    return false;
  }
  return true;
}

float single(double value) { return static_cast<float>(value); }

}  // namespace

Range range_of(int64_t elements, std::span<const float* const> pointers) {
  const auto place = [](const float* pointer) { return reinterpret_cast<uintptr_t>(pointer) / sizeof(float) % 4; };
  for (const float* pointer : pointers)
    if (pointer && place(pointer) != place(pointers[0])) return {elements, 0, 0};
  const int64_t head = std::min<int64_t>(elements, (4 - place(pointers[0])) % 4);
  return {elements, head, (elements - head) / 4};
}

std::string obstacle(at::Device device) { return devices().obstacle(device); }

bool linear(at::Tensor& out, const at::Tensor& weights, const at::Tensor& velocity, const at::Tensor& pending,
            const Coefficients& by) {
  return launch("linear", out, std::array{weights, velocity, pending}, single(by.weights), single(by.velocity),
                single(by.pending));
}

bool adaptive(at::Tensor& out, const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
              const at::Tensor& pending, const AdaptiveCoefficients& by) {
  return launch("adaptive", out, std::array{weights, first, second, pending}, single(by.weights), single(by.moved),
                single(by.root), single(by.eps), single(by.first), single(by.pending));
}

bool steps(at::Tensor& out, const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
           const at::Tensor& pending, const AdaptiveSteps& by) {
  if (by.steps.size() > kMostSteps) return false;
  Steps all{.eps = single(by.eps),
            .first = single(by.first),
            .decay = single(by.decay),
            .pending = single(by.pending),
            .count = static_cast<int>(by.steps.size()),
            .through_moments = by.through_moments,
            .moves_by_gradient = by.moves_by_gradient};
  for (size_t k = 0; k < by.steps.size(); ++k) {
    const AdaptiveSteps::One& one = by.steps[k];
    all.steps[k] = {single(one.kept), single(one.root), single(one.moment), single(one.gradient)};
  }
  return launch("steps", out, std::array{weights, first, second, pending}, all);
}

bool gap(at::Tensor& gradient, const at::Tensor& now, const at::Tensor& used, const at::Tensor& unit) {
  return launch("gap", gradient, std::array{gradient, now, used, unit});
}

}  // namespace ddip::staleness::cuda
