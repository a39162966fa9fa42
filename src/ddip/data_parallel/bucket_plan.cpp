#include "ddip/data_parallel/bucket_plan.h"

#include <algorithm>
#include <map>

namespace ddip::data_parallel {
namespace {

constexpr size_t kLine = 64;  // a gradient begins where a line of the cache does

size_t whole_lines(const Gradient& gradient) {
  size_t per_line = std::max<size_t>(kLine / gradient.element_bytes, 1);
  return (gradient.elements + per_line - 1) / per_line * per_line;
}

}  // namespace

BucketPlan plan_buckets(std::span<const Gradient> gradients, std::span<const size_t> order, const BucketSizes& sizes,
                        size_t used) {
  BucketPlan plan;
  plan.bucket_of.resize(gradients.size());
  plan.begin.resize(gradients.size());
  std::map<int, Bucket> open;
  std::map<int, size_t> closed;  // buckets of each kind so far
  auto close = [&](Bucket& bucket) {
    for (size_t member : bucket.members) plan.bucket_of[member] = plan.buckets.size();
    ++closed[bucket.kind];
    plan.buckets.push_back(std::move(bucket));
  };
  // Those that are open are complete when their last member is.
  auto close_all = [&] {
    std::vector<Bucket> rest;
    for (auto& [kind, bucket] : open) rest.push_back(std::move(bucket));
    open.clear();
    auto last = [&](const Bucket& bucket) { return std::find(order.begin(), order.end(), bucket.members.back()); };
    std::sort(rest.begin(), rest.end(), [&](const Bucket& a, const Bucket& b) { return last(a) < last(b); });
    for (Bucket& bucket : rest) close(bucket);
  };
  for (size_t position = 0; position < order.size(); ++position) {
    if (position == used) close_all();
    const size_t index = order[position];
    const Gradient& gradient = gradients[index];
    size_t kind = static_cast<size_t>(gradient.kind);
    if (plan.total.size() <= kind) plan.total.resize(kind + 1);
    Bucket& bucket = open[gradient.kind];
    if (bucket.members.empty()) bucket = {gradient.kind, plan.total[kind], 0, {}};
    plan.begin[index] = plan.total[kind];
    bucket.members.push_back(index);
    size_t room = whole_lines(gradient);
    bucket.elements += room;
    plan.total[kind] += room;
    size_t limit = closed[gradient.kind] == 0 ? sizes.first_bytes : sizes.bytes;
    if (bucket.elements * gradient.element_bytes >= limit) {
      close(bucket);
      open.erase(gradient.kind);
    }
  }
  close_all();
  return plan;
}

}  // namespace ddip::data_parallel
