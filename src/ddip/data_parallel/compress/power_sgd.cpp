// PowerSGD (Vogels et al., 2019): a gradient matrix M ≈ P Qᵀ of low rank. P = M Q is averaged, made orthogonal (on the
// averaged values, so the same on every rank), then Q = Mᵀ P is averaged. Q is where the next step begins. What is no
// matrix, or would not shrink, travels as it is.
#include "ddip/data_parallel/compress/residuals.h"

namespace ddip::data_parallel {
namespace {

// Gram–Schmidt, in place. Twice: what the first round leaves of a column that lies between the others is rounding,
// which points anywhere, also along them, and would count their part of the gradient again. A column of which nothing
// is left becomes zero.
void make_orthogonal(at::Tensor matrix) {
  for (int64_t column = 0; column < matrix.size(1); ++column) {
    at::Tensor here = matrix.select(1, column);
    double before = here.norm().item<double>();
    for (int round = 0; round < 2; ++round) {
      for (int64_t earlier = 0; earlier < column; ++earlier) {
        at::Tensor other = matrix.select(1, earlier);
        here.sub_(other * here.dot(other));
      }
    }
    double length = here.norm().item<double>();
    if (length > 1e-6 * before && length > 0)
      here.div_(length);
    else
      here.zero_();
  }
}

class PowerSgd : public Compressor {
 public:
  explicit PowerSgd(int64_t rank) : rank_(rank) {}

  Outcome reduce(tensors::Communicator& ranks, std::span<const Piece> pieces) override {
    struct Matrix {
      const Piece* piece;
      at::Tensor m, p, q;
    };
    std::vector<Matrix> matrices;
    std::vector<const Piece*> whole;
    for (const Piece& piece : pieces) {
      int64_t rows = piece.shape.empty() ? 1 : piece.shape[0];
      int64_t columns = rows == 0 ? 0 : piece.gradient.numel() / rows;
      if (piece.shape.size() < 2 || (rows + columns) * rank_ >= rows * columns) {
        whole.push_back(&piece);
        continue;
      }
      matrices.push_back({&piece, residuals_.with_rest(piece).view({rows, columns}), {}, begin_of(piece, columns)});
    }

    Outcome outcome;
    std::vector<at::Tensor> parts;
    for (Matrix& matrix : matrices) parts.push_back((matrix.p = matrix.m.mm(matrix.q)).view({-1}));
    for (const Piece* piece : whole) parts.push_back(piece->gradient.to(at::kFloat));
    at::Tensor first = at::cat(parts);
    ranks.all_reduce(first, comm::Reduction::mean);
    outcome = {first.nbytes(), all_finite(first)};
    if (!outcome.finite) return outcome;
    int64_t begin = 0;
    auto take = [&begin](const at::Tensor& flat, const at::Tensor& like) {
      at::Tensor part = flat.narrow(0, begin, like.numel()).view(like.sizes());
      begin += like.numel();
      return part;
    };
    for (Matrix& matrix : matrices) make_orthogonal(matrix.p = take(first, matrix.p));
    for (const Piece* piece : whole) piece->gradient.copy_(take(first, piece->gradient));
    if (matrices.empty()) return outcome;

    parts.clear();
    for (Matrix& matrix : matrices) parts.push_back((matrix.q = matrix.m.t().mm(matrix.p)).view({-1}));
    at::Tensor second = at::cat(parts);
    ranks.all_reduce(second, comm::Reduction::mean);
    outcome.bytes += second.nbytes();
    outcome.finite = all_finite(second);
    if (!outcome.finite) return outcome;
    begin = 0;
    for (Matrix& matrix : matrices) {
      matrix.q = take(second, matrix.q);
      at::Tensor mean = matrix.p.mm(matrix.q.t());
      matrix.piece->gradient.copy_(mean.view({-1}));
      residuals_.keep(matrix.piece->parameter, matrix.m.sub_(mean).view({-1}));
      pending_[matrix.piece->parameter] = matrix.q.clone();
    }
    return outcome;
  }

  void commit() override {
    residuals_.commit();
    for (auto& [parameter, q] : pending_) begins_[parameter] = std::move(q);
    pending_.clear();
  }
  void rollback() override {
    residuals_.rollback();
    pending_.clear();
  }
  void rollback(size_t parameter) override {
    residuals_.rollback(parameter);
    pending_.erase(parameter);
  }
  Kept kept() const override { return {{Residuals::kKind, residuals_.kept()}, {kBegin, begins_}}; }
  void set_kept(Kept kept) override {
    residuals_.set_kept(std::move(kept[Residuals::kKind]));
    begins_ = std::move(kept[kBegin]);
    pending_.clear();
  }
  at::Tensor residual(size_t parameter) const override { return residuals_.of(parameter); }

 private:
  static constexpr const char* kBegin = "begin";  // in Kept
  // Where the last step ended; before the first, random numbers that are the same on every rank. So too in place of a
  // column that has become zero (the matrix was zero, or of lower rank): from zero it would never come back.
  at::Tensor begin_of(const Piece& piece, int64_t columns) const {
    auto random = [&] {
      auto generator = at::detail::createCPUGenerator(1 + piece.parameter);
      return at::randn({columns, rank_}, generator, at::kFloat).to(piece.gradient.device());
    };
    auto last = begins_.find(piece.parameter);
    if (last == begins_.end() || last->second.sizes() != at::IntArrayRef({columns, rank_}) ||
        last->second.device() != piece.gradient.device())
      return random();
    at::Tensor zero = last->second.abs().amax(0) == 0;
    return zero.any().item<bool>() ? at::where(zero, random(), last->second) : last->second;
  }

  const int64_t rank_;
  Residuals residuals_;
  std::map<size_t, at::Tensor> begins_;
  std::map<size_t, at::Tensor> pending_;
};

}  // namespace

std::unique_ptr<Compressor> make_power_sgd(int64_t rank) { return std::make_unique<PowerSgd>(rank); }

}  // namespace ddip::data_parallel
