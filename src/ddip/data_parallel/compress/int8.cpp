// int8: a quarter of the bytes each way. Bytes of ranks with different scales cannot be added, so the ranks agree on
// one scale per parameter first; each rank then adds up one slice of everybody's bytes, exactly, and sends its mean as
// bytes.
#include "ddip/data_parallel/compress/residuals.h"

namespace ddip::data_parallel {
namespace {

constexpr double kSteps = 127;

class Int8 : public Compressor {
 public:
  Outcome reduce(tensors::Communicator& ranks, std::span<const Piece> pieces) override {
    const int64_t world = ranks.world();
    std::vector<at::Tensor> wanted, largest;
    for (const Piece& piece : pieces) {
      wanted.push_back(residuals_.with_rest(piece));
      largest.push_back(piece.gradient.numel() > 0 ? wanted.back().abs().max()
                                                   : at::zeros({}, wanted.back().options()));
    }
    at::Tensor scales = at::stack(largest);
    ranks.all_reduce(scales, comm::Reduction::max);
    Outcome outcome{scales.nbytes(), all_finite(scales)};
    if (!outcome.finite) return outcome;

    std::vector<at::Tensor> bytes;
    at::Tensor steps = scales / kSteps;
    steps = at::where(steps > 0, steps, at::ones_like(steps));  // also where the quotient is too small for a float
    for (size_t index = 0; index < pieces.size(); ++index) {
      at::Tensor units = (wanted[index] / steps[static_cast<int64_t>(index)]).round_().clamp_(-kSteps, kSteps);
      residuals_.keep(pieces[index].parameter, wanted[index] - units * steps[static_cast<int64_t>(index)]);
      bytes.push_back(units.to(at::kChar));
    }
    at::Tensor all = at::cat(bytes);
    const int64_t count = all.numel(), share = (count + world - 1) / world;
    all = at::constant_pad_nd(all, {0, share * world - count});

    at::Tensor mine = at::empty_like(all);
    ranks.all_to_all(mine, all);
    at::Tensor mean = mine.view({world, share}).sum(0, false, at::kInt).to(at::kFloat).div_(world);
    at::Tensor rounded = mean.round();
    at::Tensor result = ranks.all_gather(rounded.to(at::kChar)).view({-1});
    outcome.bytes += all.nbytes() + static_cast<size_t>(share);

    // What rounding the mean lost is owed by who rounded it: once, and its part of the next mean is one of `world`.
    at::Tensor owed = (mean - rounded).mul_(world);
    const int64_t from = share * ranks.rank(), to = std::min(from + share, count);
    int64_t begin = 0;
    for (size_t index = 0; index < pieces.size(); ++index) {
      const at::Tensor& gradient = pieces[index].gradient;
      at::Tensor step = steps[static_cast<int64_t>(index)];
      gradient.copy_(result.narrow(0, begin, gradient.numel()).to(at::kFloat).mul_(step));
      int64_t first = std::max(begin, from), last = std::min(begin + gradient.numel(), to);
      if (first < last)
        residuals_.pending(pieces[index].parameter)
            .narrow(0, first - begin, last - first)
            .add_(owed.narrow(0, first - from, last - first).mul(step));
      begin += gradient.numel();
    }
    return outcome;
  }

  void commit() override { residuals_.commit(); }
  void rollback() override { residuals_.rollback(); }
  void rollback(size_t parameter) override { residuals_.rollback(parameter); }
  Kept kept() const override { return {{Residuals::kKind, residuals_.kept()}}; }
  void set_kept(Kept kept) override { residuals_.set_kept(std::move(kept[Residuals::kKind])); }
  at::Tensor residual(size_t parameter) const override { return residuals_.of(parameter); }

 private:
  Residuals residuals_;
};

}  // namespace

std::unique_ptr<Compressor> make_int8() { return std::make_unique<Int8>(); }

}  // namespace ddip::data_parallel
