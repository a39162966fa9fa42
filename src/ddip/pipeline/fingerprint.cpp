#include "ddip/pipeline/fingerprint.h"

#include <cstring>

namespace ddip::pipeline {
namespace {

// Enough that two different batches do not look alike, and microseconds for any size.
constexpr int64_t kWords = 2048, kWord = sizeof(uint64_t);

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15;
  return hash ^ (hash >> 29);
}

// Some words, spread over all of the tensor, and the bytes that are no whole word. They are chosen where the tensor is:
// what has to come from a GPU is short then.
std::pair<at::Tensor, at::Tensor> part_of(const at::Tensor& tensor) {
  at::Tensor bytes = tensor.detach().contiguous().flatten().view(at::kByte);
  int64_t words = bytes.numel() / kWord;
  at::Tensor whole = bytes.narrow(0, 0, words * kWord);
  if (whole.storage_offset() % kWord != 0) whole = whole.clone();
  return {whole.view(at::kLong).slice(0, 0, words, words / kWords + 1).contiguous().cpu(),
          bytes.narrow(0, words * kWord, bytes.numel() % kWord).cpu()};
}

}  // namespace

uint64_t fingerprint(const Value& value) {
  uint64_t hash = 0x6464697070697065;
  for (char byte : encode_structure(value)) hash = mixed(hash, static_cast<uint8_t>(byte));
  for (const at::Tensor& tensor : tensors_of(value)) {
    auto [words, rest] = part_of(tensor);
    for (int64_t i = 0; i < words.numel(); ++i) hash = mixed(hash, static_cast<uint64_t>(words.data_ptr<int64_t>()[i]));
    uint64_t last = 0;
    if (rest.numel() > 0) std::memcpy(&last, rest.const_data_ptr(), rest.nbytes());
    hash = mixed(hash, last);
  }
  return hash == 0 ? 1 : hash;
}

}  // namespace ddip::pipeline
