#pragma once

#include <pybind11/pybind11.h>

namespace ddip::bindings {

void bind_difference(pybind11::module_& module);

}  // namespace ddip::bindings
