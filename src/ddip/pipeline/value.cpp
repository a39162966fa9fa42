#include "ddip/pipeline/value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

// A container in a message is not deeper than this: a broken message must not eat the stack.
constexpr int kDeepest = 32;

enum Tag : uint8_t { none, boolean, integer, real, text, tensor, list, tuple, dict };

void visit(const Value& value, const std::function<void(const at::Tensor&)>& each) {
  if (const at::Tensor* found = value.tensor()) return each(*found);
  if (const auto* items = std::get_if<Value::List>(&value.content))
    for (const Value& item : items->items) visit(item, each);
  if (const auto* items = std::get_if<Value::Tuple>(&value.content))
    for (const Value& item : items->items) visit(item, each);
  if (const auto* entries = std::get_if<Value::Dict>(&value.content))
    for (const auto& [key, item] : entries->entries) visit(item, each);
}

class Writer {
 public:
  std::string bytes;

  template <typename Number>
  void number(Number value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void tag(Tag value) { bytes.push_back(static_cast<char>(value)); }
  void string(const std::string& value) {
    number<uint32_t>(static_cast<uint32_t>(value.size()));
    bytes += value;
  }
  void items(Tag kind, const std::vector<Value>& values) {
    tag(kind);
    number<uint32_t>(static_cast<uint32_t>(values.size()));
    for (const Value& value : values) write(value);
  }

  void write(const Value& value) {
    std::visit([this](const auto& content) { one(content); }, value.content);
  }

 private:
  void one(std::monostate) { tag(none); }
  void one(bool value) { tag(boolean), number<uint8_t>(value); }
  void one(int64_t value) { tag(integer), number(value); }
  void one(double value) { tag(real), number(value); }
  void one(const std::string& value) { tag(text), string(value); }
  void one(const at::Tensor& value) {
    tag(tensor);
    number<int8_t>(static_cast<int8_t>(value.scalar_type()));
    number<uint8_t>(static_cast<uint8_t>(value.dim()));
    for (int64_t size : value.sizes()) number(size);
    for (int64_t stride : value.strides()) number(stride);
  }
  void one(const Value::List& value) { items(list, value.items); }
  void one(const Value::Tuple& value) { items(tuple, value.items); }
  void one(const Value::Dict& value) {
    tag(dict);
    number<uint32_t>(static_cast<uint32_t>(value.entries.size()));
    for (const auto& [key, item] : value.entries) string(key), write(item);
  }
};

class Reader {
 public:
  Reader(std::string_view bytes, const std::function<at::Tensor(const Layout&)>& next) : bytes_(bytes), next_(next) {}

  Value read(int depth = 0) {
    if (depth > kDeepest) broken("it is nested too deeply");
    switch (number<uint8_t>()) {
      case none: return {};
      case boolean: return {number<uint8_t>() != 0};
      case integer: return {number<int64_t>()};
      case real: return {number<double>()};
      case text: return {string()};
      case tensor: return {next_(layout())};
      case list: return {Value::List{items(depth)}};
      case tuple: return {Value::Tuple{items(depth)}};
      case dict: {
        Value::Dict found;
        auto count = number<uint32_t>();
        for (uint32_t i = 0; i < count; ++i) {
          std::string key = string();
          found.entries.push_back({std::move(key), read(depth + 1)});
        }
        return {std::move(found)};
      }
      default: broken("it has a kind of value that is unknown");
    }
  }
  void finish() {
    if (!bytes_.empty()) broken("bytes are left over");
  }

 private:
  [[noreturn]] static void broken(const char* why) {
    throw ProtocolError(fmt::format("a message between stages is broken: {}", why));
  }
  std::string_view take(size_t size) {
    if (size > bytes_.size()) broken("it ends too early");
    std::string_view part = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return part;
  }
  template <typename Number>
  Number number() {
    Number value;
    take(sizeof value).copy(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string string() { return std::string(take(number<uint32_t>())); }
  std::vector<Value> items(int depth) {
    std::vector<Value> found;
    auto count = number<uint32_t>();
    for (uint32_t i = 0; i < count; ++i) found.push_back(read(depth + 1));
    return found;
  }
  Layout layout() {
    Layout layout;
    auto type = number<int8_t>();
    if (type < 0 || type >= static_cast<int8_t>(at::ScalarType::NumOptions)) broken("it has an unknown type");
    layout.type = static_cast<at::ScalarType>(type);
    layout.sizes.resize(number<uint8_t>());
    layout.strides.resize(layout.sizes.size());
    for (int64_t& size : layout.sizes) size = number<int64_t>();
    for (int64_t& stride : layout.strides) stride = number<int64_t>();
    return layout;
  }

  std::string_view bytes_;
  const std::function<at::Tensor(const Layout&)>& next_;
};

std::string describe_items(const std::vector<Value>& items, char open, char close) {
  std::vector<std::string> words;
  for (const Value& item : items) words.push_back(describe(item));
  return fmt::format("{}{}{}", open, fmt::join(words, ", "), close);
}

}  // namespace

std::vector<at::Tensor> tensors_of(const Value& value) {
  std::vector<at::Tensor> found;
  visit(value, [&](const at::Tensor& tensor) { found.push_back(tensor); });
  return found;
}

Value with_tensors(const Value& value, const std::function<at::Tensor(const at::Tensor&)>& change) {
  Value changed = value;
  if (auto* tensor = std::get_if<at::Tensor>(&changed.content)) *tensor = change(*tensor);
  if (auto* list = std::get_if<Value::List>(&changed.content))
    for (Value& item : list->items) item = with_tensors(item, change);
  if (auto* tuple = std::get_if<Value::Tuple>(&changed.content))
    for (Value& item : tuple->items) item = with_tensors(item, change);
  if (auto* dict = std::get_if<Value::Dict>(&changed.content))
    for (auto& [key, item] : dict->entries) item = with_tensors(item, change);
  return changed;
}

Value to_device(const Value& value, at::Device device) {
  return with_tensors(value, [device](const at::Tensor& tensor) { return tensor.to(device); });
}

std::string describe(const Value& value) {
  struct Words {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(bool value) const { return value ? "True" : "False"; }
    std::string operator()(int64_t value) const { return fmt::format("{}", value); }
    std::string operator()(double value) const { return fmt::format("{}", value); }
    std::string operator()(const std::string& value) const { return fmt::format("'{}'", value); }
    std::string operator()(const at::Tensor& value) const {
      return fmt::format("{} [{}]", c10::toString(value.scalar_type()),
                         fmt::join(value.sizes().begin(), value.sizes().end(), ", "));
    }
    std::string operator()(const Value::List& value) const { return describe_items(value.items, '[', ']'); }
    std::string operator()(const Value::Tuple& value) const { return describe_items(value.items, '(', ')'); }
    std::string operator()(const Value::Dict& value) const {
      std::vector<std::string> words;
      for (const auto& [key, item] : value.entries) words.push_back(fmt::format("'{}': {}", key, describe(item)));
      return fmt::format("{{{}}}", fmt::join(words, ", "));
    }
  };
  return std::visit(Words(), value.content);
}

std::string encode_structure(const Value& value) {
  Writer writer;
  writer.write(value);
  return std::move(writer.bytes);
}

Value decode_structure(std::string_view bytes, const std::function<at::Tensor(const Layout&)>& next) {
  Reader reader(bytes, next);
  Value value = reader.read();
  reader.finish();
  return value;
}

}  // namespace ddip::pipeline
