#include "ddip/pipeline/autocast.h"

#include <ATen/autocast_mode.h>

namespace ddip::pipeline {

Autocast::Autocast(const std::string& precision, at::Device device)
    : wanted_(precision != "fp32"), device_(device.type()) {
  if (!wanted_) return;
  was_on_ = at::autocast::is_autocast_enabled(device_);
  was_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, precision == "fp16" ? at::kHalf : at::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!wanted_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_on_);
  at::autocast::set_autocast_dtype(device_, was_);
}

}  // namespace ddip::pipeline
