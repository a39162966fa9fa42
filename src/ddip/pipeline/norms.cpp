#include "ddip/pipeline/norms.h"

#include <cmath>

#include "ddip/base/error.h"

namespace ddip::pipeline {

// A rank's stages do not ask for the same step at the same time.
constexpr int64_t kKept = 256;

Norms::Norms(int rank, std::vector<Peer> peers, int stages, int delay)
    : rank_(rank), peers_(std::move(peers)), stages_(stages), delay_(delay) {}

std::map<int64_t, double> Norms::squares() const {
  std::map<int64_t, double> before;
  for (auto [step, square] : totals_) {
    if (step - steps_ >= -delay_) before[step - steps_] = square;
  }
  return before;
}

void Norms::begin() {
  totals_ = squares();
  steps_ = 0;
}

bool Norms::tell(int64_t step, double square, const Poll& poll) {
  Sum& sum = mine_[step];
  sum.square += square;
  if (++sum.stages < stages_) return false;
  told_[step] = sum.square;
  mine_.erase(step);
  steps_ = step + 1;
  for (const Peer& peer : peers_)
    peer.to->send({.micro_batch = step, .count = 1, .value = {at::full({1}, told_[step], at::kDouble)}}, poll);
  return true;
}

void Norms::take(int64_t step, const Poll& poll) {
  auto own = told_.find(step);
  if (own == told_.end())
    throw ConfigError(
        "the plan steps one stage of a rank long before another, and they tell each other of their gradients; expected "
        "clipping='local', and no precision='fp16'");
  double total = 0;
  bool added = false;
  for (const Peer& peer : peers_) {  // by rank, so that all of them add in one order
    if (!added && peer.rank > rank_) {
      total += own->second;
      added = true;
    }
    Message message = peer.from->receive(poll);
    if (message.micro_batch != step) throw ProtocolError("a norm of another step came");
    total += message.value.tensor()->item<double>();
  }
  totals_[step] = added ? total : total + own->second;
  told_.erase(own);
}

std::optional<double> Norms::ask(int64_t step, const Poll& poll) {
  int64_t wanted = step - delay_;
  while (!told_.empty() && told_.begin()->first <= wanted) take(told_.begin()->first, poll);
  auto found = totals_.find(wanted);
  if (found == totals_.end()) {
    if (wanted >= 0) take(wanted, poll);  // says why not
    return std::nullopt;
  }
  totals_.erase(totals_.begin(), totals_.lower_bound(wanted - kKept));
  return std::sqrt(found->second);
}

void Norms::settle(const Poll& poll) {
  while (!told_.empty()) take(told_.begin()->first, poll);
}

void Norms::restore(std::map<int64_t, double> squares) {
  reset();
  totals_ = std::move(squares);
}

void Norms::reset() {
  mine_.clear();
  told_.clear();
  totals_.clear();
  steps_ = 0;
}

}  // namespace ddip::pipeline
