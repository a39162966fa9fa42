// A C++ function or module as a stage or a loss: its arguments are taken out of values that crossed a border, what it
// returns becomes one. Tensors, std::vector of tensors, tuples, optional tensors, numbers and Value itself may cross.
#pragma once

#include <concepts>
#include <optional>
#include <tuple>
#include <type_traits>

#include "ddip/pipeline/value.h"

namespace ddip::pipeline {

// What crosses a border in place of None is an empty optional.
template <typename Kind>
struct Crossing;

// Throws ConfigError: what was expected, and what came.
[[noreturn]] void refuse_value(const char* expected, const Value& came);
// Of a list or tuple; of `size` if that is not negative.
const std::vector<Value>& items_of(const Value& value, const char* expected, int64_t size = -1);

template <>
struct Crossing<Value> {
  static Value to(Value value) { return value; }
  static Value from(const Value& value) { return value; }
};

template <>
struct Crossing<at::Tensor> {
  static Value to(at::Tensor tensor) { return tensor.defined() ? Value{std::move(tensor)} : Value{}; }
  static at::Tensor from(const Value& value) {
    if (const at::Tensor* found = value.tensor()) return *found;
    refuse_value("a tensor", value);
  }
};

template <>
struct Crossing<std::optional<at::Tensor>> {
  static Value to(const std::optional<at::Tensor>& tensor) { return tensor ? Value{*tensor} : Value{}; }
  static std::optional<at::Tensor> from(const Value& value) {
    if (std::holds_alternative<std::monostate>(value.content)) return std::nullopt;
    return Crossing<at::Tensor>::from(value);
  }
};

template <typename Number>
  requires std::same_as<Number, bool> || std::same_as<Number, int64_t> || std::same_as<Number, double>
struct Crossing<Number> {
  static Value to(Number number) { return Value{number}; }
  static Number from(const Value& value) {
    if (const auto* found = std::get_if<Number>(&value.content)) return *found;
    refuse_value("a number", value);
  }
};

template <typename Kind>
struct Crossing<std::vector<Kind>> {
  static Value to(const std::vector<Kind>& items) {
    Value::List list;
    for (const Kind& item : items) list.items.push_back(Crossing<Kind>::to(item));
    return Value{std::move(list)};
  }
  static std::vector<Kind> from(const Value& value) {
    std::vector<Kind> found;
    for (const Value& item : items_of(value, "a list")) found.push_back(Crossing<Kind>::from(item));
    return found;
  }
};

template <typename... Kinds>
struct Crossing<std::tuple<Kinds...>> {
  static Value to(const std::tuple<Kinds...>& items) {
    return std::apply([](const Kinds&... each) { return Value{Value::Tuple{{Crossing<Kinds>::to(each)...}}}; }, items);
  }
  static std::tuple<Kinds...> from(const Value& value) {
    const std::vector<Value>& items = items_of(value, "a tuple", sizeof...(Kinds));
    return [&]<size_t... index>(std::index_sequence<index...>) {
      return std::tuple<Kinds...>(Crossing<Kinds>::from(items[index])...);
    }(std::index_sequence_for<Kinds...>());
  }
};

template <typename Result>
Value to_value(Result&& result) {
  return Crossing<std::decay_t<Result>>::to(std::forward<Result>(result));
}

// The types of a function's arguments, where it has one signature; a template takes tensors.
template <typename Member>
struct ArgumentsOf;
template <typename Result, typename Class, typename... Kinds>
struct ArgumentsOf<Result (Class::*)(Kinds...)> {
  using Types = std::tuple<std::decay_t<Kinds>...>;
};
template <typename Result, typename Class, typename... Kinds>
struct ArgumentsOf<Result (Class::*)(Kinds...) const> : ArgumentsOf<Result (Class::*)(Kinds...)> {};
template <typename Result, typename Class, typename... Kinds>
struct ArgumentsOf<Result (Class::*)(Kinds...) noexcept> : ArgumentsOf<Result (Class::*)(Kinds...)> {};
template <typename Result, typename Class, typename... Kinds>
struct ArgumentsOf<Result (Class::*)(Kinds...) const noexcept> : ArgumentsOf<Result (Class::*)(Kinds...)> {};
template <typename Result, typename... Kinds>
struct ArgumentsOf<Result (*)(Kinds...)> {
  using Types = std::tuple<std::decay_t<Kinds>...>;
};

template <typename Function, typename Default>
auto arguments_of_function() {
  if constexpr (std::is_pointer_v<Function>)
    return std::type_identity<typename ArgumentsOf<Function>::Types>();
  else if constexpr (requires { &Function::operator(); })
    return std::type_identity<typename ArgumentsOf<decltype(&Function::operator())>::Types>();
  else
    return std::type_identity<Default>();
}
template <typename Module>
auto arguments_of_forward() {
  if constexpr (requires { &Module::forward; })
    return std::type_identity<typename ArgumentsOf<decltype(&Module::forward)>::Types>();
  else
    return std::type_identity<std::tuple<at::Tensor>>();
}

// Calls it with a value. Of several arguments each is an item of it; one tensor is the first of them, if the others
// have defaults.
template <typename Types, typename Function>
Value call(Function& function, const Value& given) {
  static_assert(std::tuple_size_v<Types> > 0, "a stage takes what the one before it gives");
  using First = std::tuple_element_t<0, Types>;
  if constexpr (std::tuple_size_v<Types> == 1) {
    return to_value(function(Crossing<First>::from(given)));
  } else {
    if constexpr (std::is_invocable_v<Function&, First>) {
      if (given.tensor()) return to_value(function(Crossing<First>::from(given)));
    }
    return to_value(std::apply(function, Crossing<Types>::from(given)));
  }
}

}  // namespace ddip::pipeline
