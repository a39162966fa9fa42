#include "ddip/tensors/communicator.h"

#include <fmt/format.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bind.h"
#include "ddip/base/error.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
using comm::Reduction;
using tensors::Communicator;
using Released = py::call_guard<py::gil_scoped_release>;

Reduction reduction_of(const std::string& name) {
  for (auto reduction : {Reduction::sum, Reduction::mean, Reduction::min, Reduction::max, Reduction::product,
                         Reduction::bit_and, Reduction::bit_or, Reduction::bit_xor}) {
    if (name == comm::name_of(reduction)) return reduction;
  }
  throw ConfigError(
      fmt::format("op='{}' is no reduction: sum, mean, min, max, product, bit_and, bit_or, bit_xor", name));
}

// empty(2, 3) and empty((2, 3)), as torch has it.
at::Tensor empty(Communicator& self, const py::args& size, const std::optional<at::ScalarType>& dtype,
                 const std::optional<at::Device>& device) {
  bool listed = size.size() == 1 && !py::isinstance<py::int_>(size[0]);
  auto sizes = (listed ? py::reinterpret_borrow<py::object>(size[0]) : py::object(size)).cast<std::vector<int64_t>>();
  auto options = at::TensorOptions()
                     .dtype(dtype.value_or(c10::get_default_dtype_as_scalartype()))
                     .device(device.value_or(at::kCPU));
  py::gil_scoped_release release;
  return self.empty(sizes, options);
}

// It waits for what is under way, whose end may call Python.
void destroy(Communicator* communicator) {
  if (PyGILState_Check() == 0) {
    delete communicator;
    return;
  }
  py::gil_scoped_release release;
  delete communicator;
}

}  // namespace

void bind_communicator(py::module_& module) {
  py::class_<Communicator, std::shared_ptr<Communicator>>(module, "Communicator")
      .def(py::init([](c10::intrusive_ptr<c10d::Backend> backend, std::string name, std::string reason) {
             return std::shared_ptr<Communicator>(
                 new Communicator(std::move(backend), std::move(name), std::move(reason)), &destroy);
           }),
           py::arg("backend"), py::arg("name"), py::arg("reason"))
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("world_size", &Communicator::world)
      .def_property_readonly("name", &Communicator::name)
      .def_property_readonly("reason", &Communicator::reason)
      .def_property_readonly("backend", &Communicator::backend)
      .def_property_readonly("capabilities",
                             [](const Communicator& self) {
                               auto can = self.capabilities();
                               py::dict result;
                               result["shared_tensors"] = can.shared_tensors;
                               result["identical_bits"] = can.identical_bits;
                               result["wide_sums"] = can.wide_sums;
                               result["names_mismatch"] = can.names_mismatch;
                               result["notices_death"] = can.notices_death;
                               result["aborts"] = can.aborts;
                               result["measures_waiting"] = can.measures_waiting;
                               return result;
                             })
      .def("empty", &empty, py::kw_only(), py::arg("dtype") = py::none(), py::arg("device") = py::none(),
           "A tensor like torch.empty's, in memory that all ranks see where the backend has that: all_reduce on it "
           "copies less. All ranks call it, with the same size.")
      .def(
          "start_all_reduce",
          [](Communicator& self, const at::Tensor& tensor, const std::string& op) {
            return self.start_all_reduce(tensor, reduction_of(op));
          },
          py::arg("tensor"), py::arg("op") = "sum", Released())
      .def(
          "all_reduce",
          [](Communicator& self, const at::Tensor& tensor, const std::string& op) {
            self.all_reduce(tensor, reduction_of(op));
            return tensor;
          },
          py::arg("tensor"), py::arg("op") = "sum", Released())
      .def("broadcast", &Communicator::broadcast, py::arg("tensor"), py::arg("root") = 0, Released())
      .def(
          "reduce",
          [](Communicator& self, const at::Tensor& tensor, int root, const std::string& op) {
            self.reduce(tensor, root, reduction_of(op));
          },
          py::arg("tensor"), py::arg("root") = 0, py::arg("op") = "sum", Released())
      .def("all_gather", &Communicator::all_gather, py::arg("tensor"), Released())
      .def("gather", &Communicator::gather, py::arg("tensor"), py::arg("root") = 0, Released())
      .def("scatter", &Communicator::scatter, py::arg("out"), py::arg("tensors") = std::vector<at::Tensor>{},
           py::arg("root") = 0, Released())
      .def(
          "reduce_scatter",
          [](Communicator& self, const at::Tensor& out, const at::Tensor& in, const std::string& op) {
            self.reduce_scatter(out, in, reduction_of(op));
          },
          py::arg("out"), py::arg("tensor"), py::arg("op") = "sum", Released())
      .def("all_to_all", &Communicator::all_to_all, py::arg("out"), py::arg("tensor"), Released())
      .def("barrier", &Communicator::barrier, Released())
      .def("start_send", &Communicator::start_send, py::arg("tensor"), py::arg("to"), py::arg("tag") = 0, Released())
      .def("start_receive", &Communicator::start_receive, py::arg("tensor"), py::arg("source"), py::arg("tag") = 0,
           Released())
      .def("watch_messages", &Communicator::watch_messages, py::arg("watcher").none(true))
      .def(
          "send",
          [](Communicator& self, const at::Tensor& tensor, int to, int tag) {
            self.start_send(tensor, to, tag)->wait();
          },
          py::arg("tensor"), py::arg("to"), py::arg("tag") = 0, Released())
      .def(
          "receive",
          [](Communicator& self, const at::Tensor& tensor, int from, int tag) {
            self.start_receive(tensor, from, tag)->wait();
          },
          py::arg("tensor"), py::arg("source"), py::arg("tag") = 0, Released())
      // (object, function), for the control thread of a worker
      .def_property_readonly("describer",
                             [](const Communicator& self) {
                               Describer describer = self.describer();
                               return py::make_tuple(reinterpret_cast<uintptr_t>(describer.object),
                                                     reinterpret_cast<uintptr_t>(describer.describe));
                             })
      .def("abort", &Communicator::abort, Released())
      .def("describe", &Communicator::describe)
      .def("waited", &Communicator::waited)
      .def("__repr__", [](const Communicator& self) {
        return fmt::format("<ddip.Communicator {}: rank {} of {}, {}>", self.name(), self.rank(), self.world(),
                           self.reason());
      });
}

}  // namespace ddip::bindings
