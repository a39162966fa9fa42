#include <torch/csrc/utils/pybind.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bind.h"
#include "ddip/data_parallel/reducer.h"
#include "ddip/data_parallel/replicas.h"
#include "errors.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
using data_parallel::Compressor;
using data_parallel::Reducer;
using Released = py::call_guard<py::gil_scoped_release>;

py::dict stats_of(Reducer& reducer) {
  data_parallel::ReducerStats stats = reducer.take_stats();
  py::dict result;
  result["steps"] = stats.steps;
  result["skipped"] = stats.skipped;
  result["compute_seconds"] = stats.compute_seconds;
  result["exposed_seconds"] = stats.exposed_seconds;
  result["busy_seconds"] = stats.busy_seconds;
  result["waited_seconds"] = stats.waited;
  result["gradient_bytes"] = stats.gradient_bytes;
  result["copied_bytes"] = stats.copied_bytes;
  result["sent_bytes"] = stats.sent_bytes;
  result["backward_ended"] = stats.backward_ended;
  py::list timeline;
  for (const auto& one : stats.timeline) timeline.append(py::make_tuple(one.bucket, one.ready, one.begun, one.ended));
  result["timeline"] = timeline;
  return result;
}

}  // namespace

void bind_data_parallel(py::module_& module) {
  py::class_<Compressor, std::shared_ptr<Compressor>>(module, "Compressor")
      .def(
          "residual",
          [](const Compressor& self, size_t parameter) -> std::optional<at::Tensor> {
            at::Tensor rest = self.residual(parameter);
            return rest.defined() ? std::optional(rest) : std::nullopt;
          },
          py::arg("parameter"), "What is left over of this parameter's gradient for the next step");
  module.def("make_compressor", &data_parallel::make_compressor, py::arg("text"));
  py::class_<Reducer, std::shared_ptr<Reducer>>(module, "Reducer")
      .def(py::init([](std::shared_ptr<tensors::Communicator> ranks, std::vector<at::Tensor> parameters,
                       std::vector<std::string> names, size_t first_bucket_bytes, size_t bucket_bytes, bool find_unused,
                       bool static_graph, bool keep_nonfinite, std::shared_ptr<Compressor> compressor) {
             data_parallel::ReducerOptions options;
             options.buckets = {first_bucket_bytes, bucket_bytes};
             options.find_unused = find_unused;
             options.static_graph = static_graph;
             options.keep_nonfinite = keep_nonfinite;
             options.compressor = std::move(compressor);
             options.rethrow = rethrow_inside_torch;
             py::gil_scoped_release release;
             return Reducer::create(std::move(ranks), std::move(parameters), std::move(names), std::move(options));
           }),
           py::arg("ranks"), py::arg("parameters"), py::arg("names"), py::kw_only(), py::arg("first_bucket_bytes"),
           py::arg("bucket_bytes"), py::arg("find_unused"), py::arg("static_graph"), py::arg("keep_nonfinite"),
           py::arg("compressor"))
      .def("fits", &Reducer::fits, py::arg("parameters"))
      .def_property("sync", &Reducer::sync, &Reducer::set_sync)
      .def("note_forward", &Reducer::note_forward)
      .def("begin_join", &Reducer::begin_join, py::arg("divide_by_all"))
      .def("announce_forward", &Reducer::announce_forward, Released())
      .def("end_join", &Reducer::end_join, py::arg("on_forward"), Released())
      .def_property_readonly("joining", &Reducer::joining)
      .def("take_stats", &stats_of)
      .def_property_readonly("buckets", [](const Reducer& self) {
        std::vector<std::vector<size_t>> members;
        for (const auto& bucket : self.plan().buckets) members.push_back(bucket.members);
        return members;
      });
  module.def("require_same_shapes", &data_parallel::require_same_shapes, py::arg("ranks"), py::arg("names"),
             py::arg("tensors"), Released());
  module.def("broadcast_all", &data_parallel::broadcast_all, py::arg("ranks"), py::arg("tensors"), py::arg("root"),
             Released());
  module.def("are_equal", &data_parallel::are_equal, py::arg("ranks"), py::arg("tensors"), Released());
}

}  // namespace ddip::bindings
