#include "ddip/pipeline/tensor_hash.h"

#include "ddip/checkpoint/sha256.h"

namespace ddip::pipeline {

std::string hash_of(const std::vector<at::Tensor>& tensors) {
  checkpoint::Sha256 hash;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor bytes = tensor.detach().cpu().contiguous();
    hash.add({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  return hash.hexadecimal();
}

}  // namespace ddip::pipeline
