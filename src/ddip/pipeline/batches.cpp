#include "ddip/pipeline/batches.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

enum class Copy { no, yes };

Value part_of(const Value& value, int64_t begin, int64_t size, Copy copy) {
  return with_tensors(value, [&](const at::Tensor& tensor) {
    if (tensor.dim() == 0) return tensor;
    at::Tensor part = tensor.narrow(0, begin, size);
    return copy == Copy::yes ? part.clone() : part;
  });
}

}  // namespace

Batches::Batches(int64_t count, Read read) : count_(count), read_(std::move(read)) {
  if (count < 0) throw ConfigError(fmt::format("{} batches: expected a number from 0 on", count));
  if (!read_) throw ConfigError("batches without a function that reads them");
}

Batches::Batches(std::vector<Batch> batches)
    : count_(static_cast<int64_t>(batches.size())),
      read_([all = std::move(batches)](int64_t number) { return all[static_cast<size_t>(number)]; }) {}

Batches::Batches(std::vector<std::pair<at::Tensor, at::Tensor>> batches)
    : count_(static_cast<int64_t>(batches.size())), read_([all = std::move(batches)](int64_t number) {
        const auto& [x, y] = all[static_cast<size_t>(number)];
        return Batch(x, y);
      }) {}

Batch Batches::read(int64_t number) const {
  std::optional<Batch> batch = read_(number);
  if (!batch)
    throw ConfigError(fmt::format("the batches ended after {}, though there were said to be {}", number, count_));
  return std::move(*batch);
}

int64_t samples_of(const Value& value) {
  const std::vector<at::Tensor> tensors = tensors_of(value);
  const auto first = std::ranges::find_if(tensors, [](const at::Tensor& tensor) { return tensor.dim() > 0; });
  return first != tensors.end() ? first->size(0) : tensors.empty() ? 0 : 1;
}

void refuse_other_lengths(const Value& value, const char* what, int64_t number) {
  std::vector<int64_t> lengths;
  for (const at::Tensor& tensor : tensors_of(value)) {
    if (tensor.dim() > 0) lengths.push_back(tensor.size(0));
  }
  if (std::ranges::adjacent_find(lengths, std::ranges::not_equal_to()) != lengths.end())
    throw ConfigError(
        fmt::format("the {} of batch {} are tensors of {} samples; expected as many in each: they are cut along the "
                    "first dimension",
                    what, number, fmt::join(lengths, ", ")));
}

std::vector<MicroBatch> cut_batch(const Batch& batch, int micro_batches, int64_t number, int64_t batches) {
  refuse_other_lengths(batch.x, "inputs", number);
  refuse_other_lengths(batch.y, "targets", number);
  int64_t samples = samples_of(batch.x), targets = samples_of(batch.y);
  if (samples < micro_batches && number == 0 && batches > 1)
    throw ConfigError(fmt::format("a batch of {} samples cannot be cut into {} micro-batches", samples, micro_batches));
  if (targets != samples && targets != 0)
    throw ConfigError(fmt::format("batch {} has {} inputs and {} targets", number, samples, targets));
  std::vector<MicroBatch> parts;
  for (int64_t part = 0, begin = 0; part < micro_batches; ++part) {
    int64_t size = samples / micro_batches + (part < samples % micro_batches ? 1 : 0);
    // Inputs are copied: a stage may change them in place, and the bits of a product may depend on where in memory its
    // operands begin.
    parts.push_back({part_of(batch.x, begin, size, Copy::yes), part_of(batch.y, begin, size, Copy::no), size});
    begin += size;
  }
  return parts;
}

std::function<MicroBatch(int64_t)> MicroBatchReader::place() {
  places_.push_back(0);
  return [this, place = places_.size() - 1](int64_t micro_batch) { return read(place, micro_batch); };
}

MicroBatch MicroBatchReader::read(size_t place, int64_t micro_batch) {
  int64_t batch = micro_batch / per_batch(), part = micro_batch % per_batch() / passes_;
  places_[place] = batch;
  for (; next_ <= batch; ++next_)
    open_[next_] = cut_batch(batches_.read(next_), micro_batches_, next_, batches_.size());
  open_.erase(open_.begin(), open_.lower_bound(std::ranges::min(places_)));
  MicroBatch found = open_.at(batch)[static_cast<size_t>(part)];
  if (passes_ == 1) return found;
  // The pass before may have changed them in place.
  found.x = part_of(found.x, 0, found.samples, Copy::yes);
  if (samples_of(found.y) == found.samples) found.y = part_of(found.y, 0, found.samples, Copy::yes);
  return found;
}

}  // namespace ddip::pipeline
