// A rank's batches, cut into micro-batches as its stages ask for them; a batch is kept as long as one will.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ddip/pipeline/value.h"

namespace ddip::pipeline {

// Tensors with the samples in the first dimension, or lists, tuples and dictionaries of them.
struct Batch {
  Value x;
  Value y;

  Batch(Value inputs, Value targets) : x(std::move(inputs)), y(std::move(targets)) {}
  Batch(at::Tensor inputs, at::Tensor targets) : x{std::move(inputs)}, y{std::move(targets)} {}
};

// So many batches, by number. A rank without the first or the last stage reads none of them.
class Batches {
 public:
  using Read = std::function<std::optional<Batch>(int64_t number)>;

  Batches(int64_t count, Read read);
  Batches(std::vector<Batch> batches);                              // NOLINT: they are what they are
  Batches(std::vector<std::pair<at::Tensor, at::Tensor>> batches);  // NOLINT: likewise

  int64_t size() const { return count_; }
  // Throws ConfigError if there are fewer than was said.
  Batch read(int64_t number) const;

 private:
  int64_t count_;
  Read read_;
};

struct MicroBatch {
  Value x;
  Value y;
  int64_t samples = 0;
};

// A last batch that is too small gives empty ones. Throws ConfigError.
std::vector<MicroBatch> cut_batch(const Batch& batch, int micro_batches, int64_t number, int64_t batches);

// Of the first tensor in it; one without dimensions is everybody's, and counts where there are no others. 0 if there is
// none.
int64_t samples_of(const Value& value);
// All are cut alike, and what is longer would lose its end: throws ConfigError.
void refuse_other_lengths(const Value& value, const char* what, int64_t number);

class MicroBatchReader {
 public:
  // Each micro-batch is read `passes` times, one after the other, and has as many numbers.
  MicroBatchReader(Batches batches, int micro_batches, int passes = 1)
      : batches_(std::move(batches)), micro_batches_(micro_batches), passes_(passes) {}

  int64_t batches() const { return batches_.size(); }
  int64_t per_batch() const { return int64_t{micro_batches_} * passes_; }
  int64_t size() const { return batches_.size() * per_batch(); }

  // Of one who reads them in order: the numbers must not go back.
  std::function<MicroBatch(int64_t micro_batch)> place();

 private:
  MicroBatch read(size_t place, int64_t micro_batch);

  const Batches batches_;
  const int micro_batches_;
  const int passes_;
  std::vector<int64_t> places_;  // batch that each of those who read is at
  std::map<int64_t, std::vector<MicroBatch>> open_;
  int64_t next_ = 0;
};

}  // namespace ddip::pipeline
