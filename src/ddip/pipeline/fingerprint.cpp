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

int64_t stride_of(int64_t words) { return words / kWords + 1; }

uint64_t word_at(const std::byte* bytes, int64_t count) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, static_cast<size_t>(count));
  return word;
}

// The same words, chosen where the tensor is, and the bytes that are no whole word: what comes from a GPU is short
// then.
std::pair<at::Tensor, at::Tensor> part_of(const at::Tensor& tensor) {
  at::Tensor bytes = tensor.flatten().view(at::kByte);
  int64_t words = bytes.numel() / kWord;
  at::Tensor whole = bytes.narrow(0, 0, words * kWord);
  if (whole.storage_offset() % kWord != 0) whole = whole.clone();
  return {whole.view(at::kLong).slice(0, 0, words, stride_of(words)).contiguous().cpu(),
          bytes.narrow(0, words * kWord, bytes.numel() % kWord).cpu()};
}

uint64_t mixed_with(uint64_t hash, const at::Tensor& tensor) {
  const auto length = static_cast<int64_t>(tensor.nbytes()), rest = length % kWord;
  if (!tensor.is_cpu()) {
    auto [words, last] = part_of(tensor);
    const auto* bytes = static_cast<const std::byte*>(words.const_data_ptr());
    for (int64_t i = 0; i < words.numel(); ++i) hash = mixed(hash, word_at(bytes + i * kWord, kWord));
    return mixed(hash, rest > 0 ? word_at(static_cast<const std::byte*>(last.const_data_ptr()), rest) : 0);
  }
  const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  const int64_t words = length / kWord;
  for (int64_t i = 0; i < words; i += stride_of(words)) hash = mixed(hash, word_at(bytes + i * kWord, kWord));
  return mixed(hash, rest > 0 ? word_at(bytes + words * kWord, rest) : 0);
}

}  // namespace

uint64_t fingerprint(const Value& value) {
  uint64_t hash = 0x6464697070697065;
  for (char byte : encode_structure(value)) hash = mixed(hash, static_cast<uint8_t>(byte));
  for (const at::Tensor& tensor : tensors_of(value)) hash = mixed_with(hash, tensor.detach().contiguous());
  return hash == 0 ? 1 : hash;
}

}  // namespace ddip::pipeline
