#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "bind.h"
#include "ddip/models/unet/device.h"
#include "ddip/models/unet/load.h"
#include "ddip/models/unet/loss.h"
#include "ddip/models/unet/network.h"
#include "ddip/models/unet/scores.h"
#include "ddip/models/unet/step.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
namespace unet = models::unet;
using Released = py::call_guard<py::gil_scoped_release>;
using unet::NetworkOptions;
using unet::Scores;

// A network and its optimizer that train in C++, for benchmarks: what Trainer does in a step, without ranks.
class Stepper {
 public:
  Stepper(const NetworkOptions& options, std::string precision, at::Device device)
      : network_(options), precision_(std::move(precision)) {
    network_.to(device);
    network_.use_channels_last();
    adam_.emplace(network_.parameters());
  }
  at::Tensor step(const at::Tensor& images, const at::Tensor& labels, double learning_rate) {
    return unet::train_step([this](const at::Tensor& batch) { return network_.forward(batch); }, *adam_, images, labels,
                            precision_, learning_rate)
        .loss;
  }

 private:
  unet::Network network_;
  std::string precision_;
  std::optional<models::Adam> adam_;
};

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

// As the C++ network begins them: parameters, then buffers.
std::pair<Tensors, Tensors> tensors_of(const NetworkOptions& options, uint64_t seed) {
  const unet::Network network(options, seed);
  Tensors parameters, buffers;
  for (const auto& entry : network.named_parameters()) parameters.emplace_back(entry.key(), entry.value().detach());
  for (const auto& entry : network.named_buffers()) buffers.emplace_back(entry.key(), entry.value());
  return {parameters, buffers};
}

std::pair<NetworkOptions, Tensors> loaded_run(const std::string& run) {
  auto folder = unet::RunFolder::open(run);
  const auto network = unet::load_best(folder).network;
  Tensors tensors;
  for (const auto& entry : network->named_parameters()) tensors.emplace_back(entry.key(), entry.value().detach());
  for (const auto& entry : network->named_buffers()) tensors.emplace_back(entry.key(), entry.value());
  return {network->options(), tensors};
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
  module.def("unet_of_run", &loaded_run, py::arg("run"), Released());
  py::class_<Stepper>(module, "UNetStepper")
      .def(py::init<const NetworkOptions&, std::string, at::Device>(), py::arg("options"), py::arg("precision"),
           py::arg("device"), Released())
      .def("step", &Stepper::step, py::arg("images"), py::arg("labels"), py::arg("learning_rate"), Released());
  py::class_<Scores>(module, "Scores")
      .def(py::init<int64_t>(), py::arg("classes") = 3)
      .def("add", &Scores::add, py::arg("predicted"), py::arg("labels"), py::arg("lit"), Released())
      .def_property_readonly("counts", [](Scores& self) { return self.counts(); })
      .def_property_readonly("pixel_accuracy", &Scores::pixel_accuracy)
      .def_property_readonly("nonzero_accuracy", &Scores::nonzero_accuracy)
      .def("iou", &Scores::iou, py::arg("label"));
}

}  // namespace ddip::bindings
