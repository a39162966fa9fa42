#pragma once

#include <pybind11/pybind11.h>

namespace ddip::bindings {

// Flag parsing of the magics, rank lists and default names: the same code as the command line's.
void bind_options(pybind11::module_& module);

}  // namespace ddip::bindings
