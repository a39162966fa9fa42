// What crosses the border between two stages: tensors, and the plain values and containers around them.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ddip/tensors/torch.h"

namespace ddip::pipeline {

struct Value {
  struct List {
    std::vector<Value> items;
  };
  struct Tuple {
    std::vector<Value> items;
  };
  struct Named;  // no std::pair: clang wants to know all of that before there is a Value
  struct Dict {
    std::vector<Named> entries;  // in the order of the sender
  };

  std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor, List, Tuple, Dict> content;

  const at::Tensor* tensor() const { return std::get_if<at::Tensor>(&content); }
};

struct Value::Named {
  std::string key;
  Value value;
};

// Every tensor in it, in a fixed order.
std::vector<at::Tensor> tensors_of(const Value& value);
// The same value with other tensors in their places.
Value with_tensors(const Value& value, const std::function<at::Tensor(const at::Tensor&)>& change);

// Every tensor in it there; one that is there already is the same.
Value to_device(const Value& value, at::Device device);

// In words, for errors: "(float32 [4, 8], None)".
std::string describe(const Value& value);

// The value without the tensors' bytes: what a receiver needs to put it together again.
std::string encode_structure(const Value& value);
// `next` gives the tensor for each place, told its layout. Throws ProtocolError.
struct Layout {
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};
Value decode_structure(std::string_view bytes, const std::function<at::Tensor(const Layout&)>& next);

}  // namespace ddip::pipeline
