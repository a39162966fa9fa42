#include "ddip/pipeline/kept_buffers.h"

namespace ddip::pipeline {

KeptBuffers::KeptBuffers(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {
  for (const at::Tensor& buffer : buffers_) copies_.push_back(buffer.detach().clone());
}

KeptBuffers::~KeptBuffers() {
  try {
    put_back();
  } catch (const std::exception&) {
    // Something has been thrown already: what it says, a GPU that failed for example, is why this fails as well.
  }
}

void KeptBuffers::put_back() {
  at::NoGradGuard quiet;
  for (size_t i = 0; i < copies_.size(); ++i) buffers_[i].copy_(copies_[i]);
  copies_.clear();
}

}  // namespace ddip::pipeline
