#include "ddip/pipeline/losses.h"

#include <numeric>

namespace ddip::pipeline {
namespace {

constexpr size_t kBlock = 64;

}  // namespace

void Losses::add(int64_t micro_batch, const at::Tensor& sum, double count) {
  micro_batches_.push_back(micro_batch);
  counts_.push_back(count);
  if (sum.device().is_cpu()) return sums_.push_back(sum.item<double>());
  waiting_.push_back(sum.reshape({}));
  if (waiting_.size() < kBlock) return;
  blocks_.push_back(at::stack(waiting_));
  waiting_.clear();
}

std::vector<Losses::One> Losses::all() const {
  std::vector<double> sums = sums_;
  std::vector<at::Tensor> elsewhere = blocks_;
  if (!waiting_.empty()) elsewhere.push_back(at::stack(waiting_));
  for (const at::Tensor& block : elsewhere) {
    const at::Tensor here = block.to(at::kCPU).to(at::kDouble).contiguous();
    sums.insert(sums.end(), here.const_data_ptr<double>(), here.const_data_ptr<double>() + here.numel());
  }
  std::vector<One> found;
  for (size_t i = 0; i < sums.size(); ++i) found.push_back({micro_batches_[i], sums[i], counts_[i]});
  return found;
}

Losses::Newest Losses::newest(size_t most) const {
  const auto many = static_cast<int64_t>(std::min(most, size()));
  if (many == 0) return {};
  Newest found{.micro_batch = micro_batches_.back(),
               .count = std::accumulate(counts_.end() - many, counts_.end(), 0.0)};
  if (!sums_.empty()) {
    found.sum = at::scalar_tensor(std::accumulate(sums_.end() - many, sums_.end(), 0.0), at::kDouble);
    return found;
  }
  std::vector<at::Tensor> near = waiting_;
  for (auto block = blocks_.rbegin(); block != blocks_.rend() && static_cast<int64_t>(near.size()) < many; ++block) {
    std::vector<at::Tensor> before = block->unbind();
    near.insert(near.begin(), before.begin(), before.end());
  }
  found.sum = at::stack(near).slice(0, -many).sum(at::kDouble);
  return found;
}

}  // namespace ddip::pipeline
