#include "ddip/pipeline/upload.h"

#include <c10/core/StreamGuard.h>

#include <map>
#include <mutex>

namespace ddip::pipeline {
namespace {

using c10::impl::VirtualGuardImpl;

// One for each GPU, beside those that compute.
c10::Stream copying_stream(at::Device gpu) {
  static std::mutex mutex;
  static std::map<at::DeviceIndex, c10::Stream> streams;
  std::lock_guard lock(mutex);
  auto found = streams.find(gpu.index());
  if (found == streams.end())
    found = streams.emplace(gpu.index(), VirtualGuardImpl(gpu.type()).getStreamFromGlobalPool(gpu)).first;
  return found->second;
}

Value to_gpu(const Value& value, at::Device gpu) {
  VirtualGuardImpl guard(gpu.type());
  if (!gpu.has_index()) gpu = guard.getDevice();
  const c10::Stream computing = guard.getStream(gpu), copying = copying_stream(gpu);
  bool copied = false;
  Value there = with_tensors(value, [&](const at::Tensor& tensor) {
    if (!tensor.is_cpu()) return tensor.to(gpu);
    at::Tensor own;
    {
      c10::StreamGuard on(copying);
      own = tensor.to(gpu, /*non_blocking=*/true);
    }
    own.record_stream(computing);
    copied = true;
    return own;
  });
  if (copied) guard.synchronizeStream(copying);
  return there;
}

}  // namespace

Value to_device(const Value& value, at::Device device) {
  if (device.is_cuda()) return to_gpu(value, device);
  return with_tensors(value, [device](const at::Tensor& tensor) { return tensor.to(device); });
}

}  // namespace ddip::pipeline
