// A function of a library that is found while we run.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include "ddip/base/error.h"

namespace ddip::tensors {

// `whose`: the library, for people.
template <typename Function>
void find(void* library, const char* whose, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (!function) throw ConfigError(fmt::format("{} has no {}", whose, name));
}

}  // namespace ddip::tensors
