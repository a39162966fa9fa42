#include <fmt/format.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "bind.h"
#include "ddip/base/error.h"
#include "ddip/models/event_tensors.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
using data::Ledger;
using data::Loader;
using data::Sampler;
using data::SamplerOptions;
using Released = py::call_guard<py::gil_scoped_release>;

std::shared_ptr<const data::EventSet> part_of(const std::shared_ptr<const data::EventSet>& events,
                                              std::pair<uint64_t, uint64_t> part) {
  const auto [begin, end] = part;
  const uint64_t all = events->shape().events;
  if (begin >= end || end > all)
    throw ConfigError(
        fmt::format("part=({}, {}): expected a first event and the one behind the last, of {}", begin, end, all));
  return data::range_of(events, begin, end - begin);
}

void bind_sampler(py::module_& module) {
  py::class_<Ledger>(module, "Ledger")
      .def(py::init(&Ledger::parse), py::arg("text") = "")
      .def(
          "add", [](Ledger& self, const std::vector<uint64_t>& samples) { self.add(samples); }, py::arg("samples"))
      .def(
          "merge", [](Ledger& self, const Ledger& other) { self.add(other); }, py::arg("other"))
      .def("__contains__", &Ledger::contains)
      .def("__len__", &Ledger::count)
      .def("__str__", &Ledger::text);
  py::class_<SamplerOptions>(module, "SamplerOptions")
      .def(py::init([](uint64_t samples, uint64_t batch, int rank, int world, uint64_t seed, bool shuffle) {
             return SamplerOptions{samples, rank, world, batch, seed, shuffle};
           }),
           py::arg("samples"), py::arg("batch"), py::arg("rank"), py::arg("world"), py::arg("seed"),
           py::arg("shuffle"));
  py::class_<Sampler>(module, "Sampler")
      .def(py::init<const SamplerOptions&>(), py::arg("options"))
      .def("begin_epoch", &Sampler::begin_epoch, py::arg("epoch"), py::arg("done"))
      .def("next", &Sampler::next)
      .def_property_readonly("remaining", &Sampler::remaining);
}

}  // namespace

void bind_data(py::module_& module) {
  bind_sampler(module);
  using models::EventTensors;
  py::class_<EventTensors>(module, "EventBatch")
      .def_readonly("samples", &EventTensors::samples)
      .def_readonly("images", &EventTensors::images)
      .def_readonly("labels", &EventTensors::labels);
  py::class_<Loader>(module, "EventLoader")
      .def(py::init([](const std::string& path, const SamplerOptions& sampling,
                       const std::optional<std::pair<uint64_t, uint64_t>>& part, int threads, int ahead, int classes) {
             std::shared_ptr<const data::EventSet> events = data::open_events(path);
             if (part) events = part_of(events, *part);
             return std::make_unique<Loader>(events, data::LoaderOptions{sampling, threads, ahead, classes});
           }),
           py::arg("path"), py::arg("sampling"), py::arg("part"), py::arg("threads"), py::arg("ahead"),
           py::arg("classes"), Released())
      .def("begin_epoch", &Loader::begin_epoch, py::arg("epoch"), py::arg("done"), Released())
      .def("next", &models::next_tensors, Released())
      .def_property_readonly("remaining", &Loader::remaining)
      .def_property_readonly("shape", [](const Loader& self) {
        const data::EventShape& shape = self.shape();
        return py::make_tuple(shape.events, shape.channels, shape.height, shape.width);
      });
}

}  // namespace ddip::bindings
