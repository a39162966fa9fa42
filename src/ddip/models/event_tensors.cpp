#include "ddip/models/event_tensors.h"

namespace ddip::models {
namespace {

template <typename Value>
at::Tensor tensor_of(std::unique_ptr<Value[]> values, const std::vector<int64_t>& sizes, at::ScalarType type) {
  Value* memory = values.release();
  return at::for_blob(memory, sizes).deleter([memory](void*) { delete[] memory; }).options(type).make_tensor();
}

}  // namespace

std::optional<EventTensors> next_tensors(data::Loader& loader) {
  std::optional<data::Batch> batch = loader.next();
  if (!batch) return std::nullopt;
  const data::EventShape& shape = loader.shape();
  const auto count = static_cast<int64_t>(batch->samples.size()), channels = static_cast<int64_t>(shape.channels),
             height = static_cast<int64_t>(shape.height), width = static_cast<int64_t>(shape.width);
  return EventTensors{std::move(batch->samples),
                      tensor_of(std::move(batch->images), {count, channels, height, width}, at::kFloat),
                      tensor_of(std::move(batch->labels), {count, height, width}, at::kByte)};
}

}  // namespace ddip::models
