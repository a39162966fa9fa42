// nlohmann::json ⇄ Python objects (dict, list, str, bytes, int, float, bool, None).
#pragma once

#include <pybind11/pybind11.h>

#include <nlohmann/json.hpp>

namespace ddip::bindings {

namespace py = pybind11;
using nlohmann::json;

inline py::object to_python(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
    case json::value_t::discarded: return py::none();
    case json::value_t::boolean: return py::bool_(value.get<bool>());
    case json::value_t::number_integer: return py::int_(value.get<int64_t>());
    case json::value_t::number_unsigned: return py::int_(value.get<uint64_t>());
    case json::value_t::number_float: return py::float_(value.get<double>());
    case json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
      if (!decoded) throw py::error_already_set();
      return py::reinterpret_steal<py::object>(decoded);
    }
    case json::value_t::binary: {
      const auto& bytes = value.get_binary();
      return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    case json::value_t::array: {
      py::list list;
      for (const json& item : value) list.append(to_python(item));
      return list;
    }
    case json::value_t::object: {
      py::dict dict;
      for (const auto& [key, item] : value.items()) dict[py::str(key)] = to_python(item);
      return dict;
    }
  }
  return py::none();
}

inline json from_python(py::handle value) {
  if (value.is_none()) return nullptr;
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) {
    if (py::int_(0).attr("__le__")(value).cast<bool>()) return value.cast<uint64_t>();
    return value.cast<int64_t>();
  }
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) {
    // A lone surrogate (a file name that is no UTF-8) must not stop a message.
    py::bytes encoded = value.attr("encode")("utf-8", "replace");
    return std::string(encoded);
  }
  if (py::isinstance<py::bytes>(value)) {
    std::string bytes = value.cast<std::string>();
    return json::binary(std::vector<uint8_t>(bytes.begin(), bytes.end()));
  }
  if (py::isinstance<py::dict>(value)) {
    json object = json::object();
    for (const auto& [key, item] : value.cast<py::dict>()) object[std::string(py::str(key))] = from_python(item);
    return object;
  }
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value) || py::isinstance<py::set>(value)) {
    json array = json::array();
    for (py::handle item : value) array.push_back(from_python(item));
    return array;
  }
  throw py::type_error("cannot send a " + std::string(py::str(py::type::of(value))) + " in a message");
}

}  // namespace ddip::bindings
