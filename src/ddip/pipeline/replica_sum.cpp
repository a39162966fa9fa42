#include "ddip/pipeline/replica_sum.h"

#include <fmt/format.h>

#include <algorithm>

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

at::Tensor piece_of(const at::Tensor& flat, int piece, int pieces) {
  piece = (piece % pieces + pieces) % pieces;
  int64_t begin = flat.numel() * piece / pieces, end = flat.numel() * (piece + 1) / pieces;
  return flat.narrow(0, begin, end - begin);
}

void pass_on(const Ring& ring, const at::Tensor& tensor, const Poll& poll) {
  ring.next->send({.count = 1, .value = {tensor}}, poll);
}

at::Tensor take(const Ring& ring, const Poll& poll) { return *ring.previous->receive(poll).value.tensor(); }

}  // namespace

Counts sum_over_replicas(const Ring& ring, const at::Tensor& gradient, const Counts& mine, const Poll& poll) {
  const int members = ring.members, place = ring.place;
  for (int turn = 0; turn < members - 1; ++turn) {
    pass_on(ring, piece_of(gradient, place - turn, members), poll);
    piece_of(gradient, place - turn - 1, members).add_(take(ring, poll).to(gradient.device()));
  }
  for (int turn = 0; turn < members - 1; ++turn) {
    pass_on(ring, piece_of(gradient, place + 1 - turn, members), poll);
    piece_of(gradient, place - turn, members).copy_(take(ring, poll));
  }
  constexpr int64_t kNumbers = 3;
  at::Tensor known = at::zeros({members, kNumbers + static_cast<int64_t>(mine.reached.size())}, at::kDouble);
  double* own = known[place].mutable_data_ptr<double>();
  own[0] = mine.count;
  own[1] = static_cast<double>(mine.micro_batches);
  own[2] = mine.loss_scale;
  std::ranges::copy(mine.reached, own + kNumbers);
  for (int turn = 0; turn < members - 1; ++turn) {
    int theirs = (place - turn - 1 + members) % members;
    pass_on(ring, known[(place - turn + members) % members].clone(), poll);
    known[theirs].copy_(take(ring, poll));
  }
  Counts all{.loss_scale = mine.loss_scale, .reached = std::vector<bool>(mine.reached.size())};
  for (int member = 0; member < members; ++member) {  // in this order on all of them
    const double* theirs = known[member].const_data_ptr<double>();
    all.count += theirs[0];
    all.micro_batches = std::max(all.micro_batches, static_cast<int64_t>(theirs[1]));
    if (theirs[2] != mine.loss_scale)
      throw ConfigError(fmt::format("replica {} has a loss scale of {}, this one of {}; expected the same", member,
                                    theirs[2], mine.loss_scale));
    for (size_t i = 0; i < all.reached.size(); ++i) all.reached[i] = all.reached[i] || theirs[kNumbers + i] != 0;
  }
  return all;
}

}  // namespace ddip::pipeline
