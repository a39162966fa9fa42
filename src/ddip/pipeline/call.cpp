#include "ddip/pipeline/call.h"

#include <fmt/format.h>

#include "ddip/base/error.h"

namespace ddip::pipeline {

void refuse_value(const char* expected, const Value& came) {
  throw ConfigError(fmt::format("{} was expected, {} came", expected, describe(came)));
}

const std::vector<Value>& items_of(const Value& value, const char* expected, int64_t size) {
  const std::vector<Value>* items = nullptr;
  if (const auto* list = std::get_if<Value::List>(&value.content)) items = &list->items;
  if (const auto* tuple = std::get_if<Value::Tuple>(&value.content)) items = &tuple->items;
  if (!items && size > 1) throw ConfigError(fmt::format("{} values were expected, 1 came: {}", size, describe(value)));
  if (!items) refuse_value(expected, value);
  if (size >= 0 && static_cast<int64_t>(items->size()) != size)
    throw ConfigError(fmt::format("{} values were expected, {} came: {}", size, items->size(), describe(value)));
  return *items;
}

}  // namespace ddip::pipeline
