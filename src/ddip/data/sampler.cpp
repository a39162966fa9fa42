#include "ddip/data/sampler.h"

#include <numeric>

#include <fmt/format.h>

#include <algorithm>

#include "ddip/base/error.h"
#include "ddip/data/random.h"

namespace ddip::data {

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world)
    throw ConfigError(fmt::format("rank {} of {} does not exist", options.rank, options.world));
  if (options.batch == 0) throw ConfigError("a batch has at least one sample");
  begin_epoch(0);
}

void Sampler::begin_epoch(uint64_t epoch, const Ledger& done) {
  std::vector<uint64_t> order(options_.samples);
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (options_.shuffle) {
    Random random(options_.seed, epoch);
    for (size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
  }
  // Behind the shuffling: what is left comes in the order it would have come in.
  std::erase_if(order, [&](uint64_t sample) { return done.contains(sample); });
  mine_.clear();
  at_ = 0;
  for (size_t index = static_cast<size_t>(options_.rank); index < order.size();
       index += static_cast<size_t>(options_.world))
    mine_.push_back(order[index]);
}

std::vector<uint64_t> Sampler::next() {
  size_t end = std::min<size_t>(mine_.size(), at_ + options_.batch);
  std::vector<uint64_t> batch(mine_.begin() + static_cast<ptrdiff_t>(at_), mine_.begin() + static_cast<ptrdiff_t>(end));
  at_ = end;
  return batch;
}

}  // namespace ddip::data
