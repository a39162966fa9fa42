#include "ddip/pipeline/fingerprint.h"

#include <cstring>

namespace ddip::pipeline {
namespace {

// Enough that two different batches do not look alike, and microseconds for any size.
constexpr size_t kWords = 2048;

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15;
  return hash ^ (hash >> 29);
}

}  // namespace

uint64_t fingerprint(const Value& value) {
  uint64_t hash = 0x6464697070697065;
  for (char byte : encode_structure(value)) hash = mixed(hash, static_cast<uint8_t>(byte));
  for (const at::Tensor& tensor : tensors_of(value)) {
    at::Tensor here = tensor.detach().cpu().contiguous();
    size_t words = here.nbytes() / sizeof(uint64_t), rest = here.nbytes() % sizeof(uint64_t);
    const auto* bytes = static_cast<const std::byte*>(here.const_data_ptr());
    size_t stride = words / kWords + 1;
    for (size_t i = 0; i < words; i += stride) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + i * sizeof word, sizeof word);
      hash = mixed(hash, word);
    }
    uint64_t last = 0;
    if (rest > 0) std::memcpy(&last, bytes + words * sizeof last, rest);
    hash = mixed(hash, last);
  }
  return hash == 0 ? 1 : hash;
}

}  // namespace ddip::pipeline
