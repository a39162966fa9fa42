// Folders of checkpoints, for Python's pipelines.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "bind.h"
#include "ddip/checkpoint/store.h"
#include "ddip/tensors/tensor_bytes.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
using checkpoint::Manifest;
using checkpoint::Store;
using Released = py::call_guard<py::gil_scoped_release>;
using Strings = std::map<std::string, std::string>;
// Its name, bytes and hash: ranks tell each other.
using File = std::tuple<std::string, uint64_t, std::string>;

File written(const Store& store, uint64_t step, const std::string& part, const tensors::NamedTensors& tensors,
             const Strings& metadata) {
  const tensors::TensorBytes bytes(tensors);
  const Manifest::File file = store.write(step, {part, bytes.named(), metadata});
  return {file.name, file.written.bytes, file.written.sha256};
}

void publish(const Store& store, uint64_t step, const std::string& about, const std::map<std::string, File>& parts) {
  Manifest manifest{.step = step, .about = about, .files = {}};
  for (const auto& [part, file] : parts) {
    const auto& [name, bytes, sha256] = file;
    manifest.files[part] = {name, {bytes, sha256}};
  }
  store.publish(manifest);
}

std::pair<std::map<std::string, at::Tensor>, Strings> read(const Store& store, const Manifest& manifest,
                                                           const std::string& part) {
  const checkpoint::SafetensorsFile file = store.open(manifest, part);
  return {tensors::read_tensors(file), file.header().metadata};
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  py::class_<Fd>(module, "CheckpointLock").def("release", [](Fd& self) { self.reset(); });
  py::class_<Manifest>(module, "CheckpointManifest")
      .def_readonly("step", &Manifest::step)
      .def_readonly("about", &Manifest::about)
      .def_property_readonly("parts",
                             [](const Manifest& self) {
                               std::vector<std::string> names;
                               for (const auto& [name, file] : self.files) names.push_back(name);
                               return names;
                             })
      // What two manifests have in common only if they are the same one.
      .def_property_readonly("hashes", [](const Manifest& self) {
        Strings hashes;
        for (const auto& [name, file] : self.files) hashes[name] = file.written.sha256;
        return hashes;
      });
  py::class_<Store>(module, "CheckpointStore")
      .def(py::init([](const std::string& folder) { return Store(folder); }), py::arg("folder"))
      .def("lock", &Store::lock, Released())
      .def("newest", &Store::newest, Released())
      .def("last", &Store::last, Released())
      .def("newest_whole", &Store::newest_whole, Released())
      .def("write", &written, py::arg("step"), py::arg("part"), py::arg("tensors"), py::arg("metadata"), Released())
      .def("publish", &publish, py::arg("step"), py::arg("about"), py::arg("parts"), Released())
      .def("discard", &Store::discard, py::arg("step"), py::arg("file"), Released())
      .def("read", &read, py::arg("manifest"), py::arg("part"), Released());
}

}  // namespace ddip::bindings
