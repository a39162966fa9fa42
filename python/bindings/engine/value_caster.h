// What crosses a border between stages, as Python's own values: tensors, None, numbers, strings, lists, tuples and
// dictionaries with string keys.
#pragma once

#include <fmt/format.h>
#include <torch/csrc/utils/pybind.h>

#include "ddip/base/error.h"
#include "ddip/pipeline/value.h"

namespace pybind11::detail {

template <>
struct type_caster<ddip::pipeline::Value> {
  PYBIND11_TYPE_CASTER(ddip::pipeline::Value, const_name("object"));

  bool load(handle source, bool) {
    value = from(source);
    return true;
  }
  static handle cast(const ddip::pipeline::Value& source, return_value_policy, handle) { return to(source).release(); }

 private:
  using Value = ddip::pipeline::Value;

  template <typename Sequence>
  static std::vector<Value> items(handle source) {
    std::vector<Value> found;
    for (handle item : reinterpret_borrow<Sequence>(source)) found.push_back(from(item));
    return found;
  }

  static Value from(handle source) {
    if (source.is_none()) return {};
    if (make_caster<at::Tensor> tensor; tensor.load(source, false)) return {cast_op<at::Tensor>(tensor)};
    if (isinstance<bool_>(source)) return {source.cast<bool>()};
    if (isinstance<int_>(source)) return {source.cast<int64_t>()};
    if (isinstance<float_>(source)) return {source.cast<double>()};
    if (isinstance<str>(source)) return {source.cast<std::string>()};
    if (isinstance<list>(source)) return {Value::List{items<list>(source)}};
    if (isinstance<tuple>(source)) return {Value::Tuple{items<tuple>(source)}};
    if (isinstance<dict>(source)) {
      Value::Dict found;
      for (auto [key, item] : reinterpret_borrow<dict>(source)) {
        if (!isinstance<str>(key)) refuse("a dictionary whose keys are no strings");
        found.entries.push_back({key.cast<std::string>(), from(item)});
      }
      return {std::move(found)};
    }
    refuse(fmt::format("a {}", str(type::handle_of(source).attr("__name__")).cast<std::string>()));
  }

  [[noreturn]] static void refuse(const std::string& what) {
    throw ddip::ConfigError(
        fmt::format("{} cannot cross from one stage to the next; expected tensors, None, numbers, strings, and "
                    "lists, tuples and dictionaries of them",
                    what));
  }

  static object to(const Value& source) {
    struct Python {
      object operator()(std::monostate) const { return none(); }
      object operator()(bool value) const { return bool_(value); }
      object operator()(int64_t value) const { return int_(value); }
      object operator()(double value) const { return float_(value); }
      object operator()(const std::string& value) const { return str(value); }
      object operator()(const at::Tensor& value) const { return pybind11::cast(value); }
      object operator()(const Value::List& value) const {
        list found;
        for (const Value& item : value.items) found.append(to(item));
        return found;
      }
      object operator()(const Value::Tuple& value) const {
        tuple found(value.items.size());
        for (size_t i = 0; i < value.items.size(); ++i) found[i] = to(value.items[i]);
        return found;
      }
      object operator()(const Value::Dict& value) const {
        dict found;
        for (const auto& [key, item] : value.entries) found[str(key)] = to(item);
        return found;
      }
    };
    return std::visit(Python(), source.content);
  }
};

}  // namespace pybind11::detail
