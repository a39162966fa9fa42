#include "ddip/models/unet/device.h"

#include <ATen/autocast_mode.h>

#include "ddip/base/error.h"

namespace ddip::models::unet {

at::Device device_of(const std::string& name, int local_rank) {
  if (name == "cpu") return at::kCPU;
  const bool there = at::globalContext().hasCUDA() && c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() > 0;
  if (!there && name == "cuda") throw ConfigError("--device cuda: there is no GPU that torch can use; expected cpu");
  if (!there) return at::kCPU;
  return {at::kCUDA, static_cast<at::DeviceIndex>(local_rank % c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount())};
}

at::Tensor prepared(const at::Tensor& images, at::Device device) {
  const bool travels = images.is_cpu() && !device.is_cpu();
  const at::Tensor moved = travels ? images.pin_memory().to(device, /*non_blocking=*/true) : images.to(device);
  // Noise may be below zero: no energy.
  return moved.div(10).clamp_min_(0).log1p_().div_(4).contiguous(at::MemoryFormat::ChannelsLast);
}

Precision::Precision(const std::string& name, at::Device device) : device_(device.type()), active_(name == "bf16") {
  if (!active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device_);
  old_type_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::increment_nesting();
}

Precision::~Precision() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, old_type_);
}

}  // namespace ddip::models::unet
