#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "bind.h"
#include "ddip/models/tensor_bytes.h"
#include "ddip/models/unet/device.h"
#include "ddip/models/unet/loss.h"
#include "ddip/models/unet/network.h"
#include "ddip/models/unet/run_folder.h"
#include "ddip/models/unet/scores.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
namespace unet = models::unet;
using Released = py::call_guard<py::gil_scoped_release>;
using unet::NetworkOptions;
using unet::Scores;

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

// As the C++ network begins them: parameters, then buffers.
std::pair<Tensors, Tensors> tensors_of(const NetworkOptions& options, uint64_t seed) {
  const unet::Network network(options, seed);
  Tensors parameters, buffers;
  for (const auto& entry : network.named_parameters()) parameters.emplace_back(entry.key(), entry.value().detach());
  for (const auto& entry : network.named_buffers()) buffers.emplace_back(entry.key(), entry.value());
  return {parameters, buffers};
}

NetworkOptions options_of_run(const std::string& run) {
  auto folder = unet::RunFolder::open(run);
  return {1, 3, folder.settings().width, folder.settings().depth};
}

void load_run(const std::string& run, const Tensors& tensors) {
  auto folder = unet::RunFolder::open(run);
  models::load_tensors(folder.store().open(folder.best(), "model"), tensors);
}

}  // namespace

void bind_models(py::module_& module) {
  py::class_<NetworkOptions>(module, "UNetOptions")
      .def(py::init([](int64_t channels, int64_t classes, int64_t width, int64_t depth) {
             return NetworkOptions{channels, classes, width, depth};
           }),
           py::arg("channels"), py::arg("classes"), py::arg("width"), py::arg("depth"))
      .def_readonly("channels", &NetworkOptions::channels)
      .def_readonly("classes", &NetworkOptions::classes)
      .def_readonly("width", &NetworkOptions::width)
      .def_readonly("depth", &NetworkOptions::depth);
  module.def("unet_tensors", &tensors_of, py::arg("options"), py::arg("seed"), Released());
  module.def("unet_forward", &unet::forward, py::arg("options"), py::arg("images"), py::arg("parameters"),
             py::arg("buffers"), py::arg("training"), Released());
  module.def("unet_loss", &unet::segmentation_loss, py::arg("logits"), py::arg("labels"), Released());
  module.def("unet_prepared", &unet::prepared, py::arg("images"), py::arg("device"), Released());
  module.def("unet_options_of_run", &options_of_run, py::arg("run"), Released());
  module.def("unet_load_run", &load_run, py::arg("run"), py::arg("tensors"), Released());
  py::class_<Scores>(module, "Scores")
      .def(py::init<int64_t>(), py::arg("classes") = 3)
      .def("add", &Scores::add, py::arg("predicted"), py::arg("labels"), py::arg("lit"), Released())
      .def_property_readonly("counts", [](Scores& self) { return self.counts(); })
      .def_property_readonly("pixel_accuracy", &Scores::pixel_accuracy)
      .def_property_readonly("nonzero_accuracy", &Scores::nonzero_accuracy)
      .def("iou", &Scores::iou, py::arg("label"));
}

}  // namespace ddip::bindings
