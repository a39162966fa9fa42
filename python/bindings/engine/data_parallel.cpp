#include <torch/csrc/utils/pybind.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "bind.h"
#include "ddip/data_parallel/replica.h"
#include "ddip/data_parallel/replicas.h"
#include "errors.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
using data_parallel::Compressor;
using data_parallel::Replica;
using Released = py::call_guard<py::gil_scoped_release>;

// It waits for what it has under way, which may take a thread that needs Python's lock.
struct Unlocked {
  void operator()(Replica* replica) const {
    py::gil_scoped_release release;
    delete replica;
  }
};

py::dict stats_of(Replica& replica) {
  data_parallel::ReducerStats stats;
  {
    py::gil_scoped_release release;  // a backward of another thread may be under way
    stats = replica.take_stats();
  }
  py::dict result;
  result["steps"] = stats.steps;
  result["nonfinite"] = stats.nonfinite;
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
  py::class_<Replica, std::unique_ptr<Replica, Unlocked>>(module, "Replica")
      .def(py::init([](Replica::Ranks ranks, std::function<std::vector<at::Tensor>()> parameters,
                       std::function<std::vector<std::string>()> names,
                       std::function<std::vector<at::Tensor>()> buffers, std::function<bool()> training,
                       size_t first_bucket_bytes, size_t bucket_bytes, bool find_unused, bool static_graph,
                       bool keep_nonfinite, std::shared_ptr<Compressor> compressor, bool broadcast_buffers) {
             data_parallel::ReducerOptions options;
             options.buckets = {first_bucket_bytes, bucket_bytes};
             options.find_unused = find_unused;
             options.static_graph = static_graph;
             options.keep_nonfinite = keep_nonfinite;
             options.compressor = std::move(compressor);
             options.rethrow = rethrow_inside_torch;
             data_parallel::Model model{std::move(parameters), std::move(names), std::move(buffers),
                                        std::move(training)};
             py::gil_scoped_release release;
             return std::unique_ptr<Replica, Unlocked>(
                 new Replica(std::move(ranks), std::move(model), std::move(options), broadcast_buffers));
           }),
           py::arg("ranks"), py::arg("parameters"), py::arg("names"), py::arg("buffers"), py::arg("training"),
           py::kw_only(), py::arg("first_bucket_bytes"), py::arg("bucket_bytes"), py::arg("find_unused"),
           py::arg("static_graph"), py::arg("keep_nonfinite"), py::arg("compressor"), py::arg("broadcast_buffers"))
      .def("before_forward", &Replica::before_forward, Released())
      .def("refresh", &Replica::refresh, Released())
      .def("plan", &Replica::plan, Released())
      .def_property("sync", &Replica::sync, &Replica::set_sync)
      .def("begin_join", &Replica::begin_join, py::arg("divide_by_all"), Released())
      .def("end_join", &Replica::end_join, Released())
      .def("abandon_join", &Replica::abandon_join)
      .def_property_readonly("joining", [](const Replica& self) { return self.reducer().joining(); })
      .def("retire", &Replica::retire)
      .def("sync_buffers", &Replica::sync_buffers, py::arg("root"), Released())
      .def("differing", &Replica::differing, py::arg("buffer_names"), Released())
      .def("compression_state",
           [](Replica& self) {
             tensors::NamedTensors state;
             {
               py::gil_scoped_release release;
               state = self.compression_state();
             }
             py::dict result;
             for (const auto& [name, tensor] : state) result[py::str(name)] = tensor;
             return result;
           })
      .def(
          "load_compression_state",
          [](Replica& self, const std::map<std::string, at::Tensor>& state) {
            py::gil_scoped_release release;
            self.load_compression_state({state.begin(), state.end()});
          },
          py::arg("state"))
      .def("take_stats", &stats_of)
      .def_property_readonly("compressor", &Replica::compressor)
      .def_property_readonly("buckets", [](const Replica& self) {
        std::vector<std::vector<size_t>> members;
        for (const auto& bucket : self.reducer().plan().buckets) members.push_back(bucket.members);
        return members;
      });
  module.def("broadcast_all", &data_parallel::broadcast_all, py::arg("ranks"), py::arg("tensors"), py::arg("root"),
             Released());
  module.def("are_equal", &data_parallel::are_equal, py::arg("ranks"), py::arg("tensors"), Released());
}

}  // namespace ddip::bindings
