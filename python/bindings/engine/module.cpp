// The data plane in Python. Needs torch loaded first: its types are torch's.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "bind.h"
#include "ddip/comm/mpi_library.h"
#include "ddip/tensors/c10d_backend.h"
#include "errors.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
using tensors::C10dBackend;

void bind_backend(py::module_& module) {
  py::class_<C10dBackend, c10d::Backend, c10::intrusive_ptr<C10dBackend>>(module, "C10dBackend")
      .def(py::init(
               [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
                 py::gil_scoped_release release;
                 return c10::make_intrusive<C10dBackend>(store, rank, size, timeout);
               }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"))
      // The ranks that mpirun started; all of them make it together.
      .def_static(
          "over_mpi",
          [](std::chrono::milliseconds timeout) {
            py::gil_scoped_release release;
            return c10::make_intrusive<C10dBackend>(comm::open_mpi(timeout), "mpi", timeout);
          },
          py::arg("timeout"))
      .def_property_readonly("abort_socket", &C10dBackend::abort_socket)
      // (object, function), for the control thread of a worker
      .def_property_readonly("describer",
                             [](const C10dBackend& self) {
                               Describer describer = self.describer();
                               return py::make_tuple(reinterpret_cast<uintptr_t>(describer.object),
                                                     reinterpret_cast<uintptr_t>(describer.describe));
                             })
      .def("describe", &C10dBackend::describe);
}

}  // namespace

PYBIND11_MODULE(_engine, module) {
  module.doc() = "The data plane of ddip, on torch's tensors.";
  py::module_::import("torch.distributed");
  register_errors();
  bind_backend(module);
  bind_checkpoint(module);
  bind_communicator(module);
  bind_data(module);
  bind_data_parallel(module);
  bind_models(module);
  bind_partition(module);
  bind_schedule(module);
  bind_staleness(module);
  bind_pipeline(module);
}

}  // namespace ddip::bindings
