// The largest values of a bucket with their places; the rest waits. Everybody gets everybody's, so the bytes that
// arrive grow with the ranks.
#include "ddip/data_parallel/compress/residuals.h"

namespace ddip::data_parallel {
namespace {

class TopK : public Compressor {
 public:
  explicit TopK(double share) : share_(share) {}

  Outcome reduce(tensors::Communicator& ranks, std::span<const Piece> pieces) override {
    std::vector<at::Tensor> parts;
    for (const Piece& piece : pieces) parts.push_back(residuals_.with_rest(piece));
    at::Tensor wanted = at::cat(parts);
    const int64_t count = wanted.numel();
    const int64_t sent = std::min(count, std::max<int64_t>(1, std::llround(share_ * static_cast<double>(count))));

    // A value that is not finite is among the largest.
    at::Tensor places = std::get<1>(wanted.abs().topk(sent, 0, true, false));
    at::Tensor values = wanted.index_select(0, places);
    at::Tensor all_places = ranks.all_gather(places.to(at::kInt)), all_values = ranks.all_gather(values);
    Outcome outcome{static_cast<size_t>(sent) * 8, all_finite(all_values)};
    if (!outcome.finite) return outcome;

    at::Tensor mean = at::zeros_like(wanted);
    // One rank after the other: a place occurs once in each, so the order of additions is the same everywhere.
    for (int rank = 0; rank < ranks.world(); ++rank) mean.index_add_(0, all_places[rank], all_values[rank]);
    mean.div_(ranks.world());
    wanted.index_fill_(0, places, 0);
    int64_t begin = 0;
    for (const Piece& piece : pieces) {
      const int64_t length = piece.gradient.numel();
      piece.gradient.copy_(mean.narrow(0, begin, length));
      residuals_.keep(piece.parameter, wanted.narrow(0, begin, length).clone());
      begin += length;
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
  const double share_;
  Residuals residuals_;
};

}  // namespace

std::unique_ptr<Compressor> make_topk(double share) { return std::make_unique<TopK>(share); }

}  // namespace ddip::data_parallel
