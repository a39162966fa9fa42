// One function per file of this folder.
#pragma once

#include <pybind11/pybind11.h>

namespace ddip::bindings {

void bind_checkpoint(pybind11::module_& module);
void bind_communicator(pybind11::module_& module);
void bind_data(pybind11::module_& module);
void bind_data_parallel(pybind11::module_& module);
void bind_models(pybind11::module_& module);
void bind_partition(pybind11::module_& module);
void bind_pipeline(pybind11::module_& module);
void bind_schedule(pybind11::module_& module);
void bind_staleness(pybind11::module_& module);

}  // namespace ddip::bindings
