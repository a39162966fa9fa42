#include "errors.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "ddip/base/error.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;

// The name of our Python type, or null if it is none of ours.
const char* type_of(const std::exception& error) {
  if (dynamic_cast<const ConfigError*>(&error)) return "ConfigError";
  if (dynamic_cast<const PeerLost*>(&error)) return "PeerLost";
  if (dynamic_cast<const TimedOut*>(&error)) return "TimedOut";
  if (dynamic_cast<const ProtocolError*>(&error)) return "ProtocolError";
  if (dynamic_cast<const StageFailed*>(&error)) return "StageFailed";
  return nullptr;
}

struct OurError : torch::PyTorchError {
  const char* type;
  OurError(const char* name, const char* text) : type(name) { msg = text; }
  // Borrowed: the module keeps it.
  PyObject* python_type() override { return py::object(py::module_::import("ddip.errors").attr(type)).ptr(); }
};

}  // namespace

void register_errors() {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      std::rethrow_exception(std::move(pointer));
    } catch (const std::exception& error) {
      const char* type = type_of(error);
      if (!type) throw;
      py::object python = py::module_::import("ddip.errors").attr(type);
      PyErr_SetString(python.ptr(), error.what());
    }
  });
}

void rethrow_inside_torch(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(std::move(pointer));
  } catch (const std::exception& error) {
    if (const char* type = type_of(error)) throw OurError(type, error.what());
    throw;
  }
}

}  // namespace ddip::bindings
